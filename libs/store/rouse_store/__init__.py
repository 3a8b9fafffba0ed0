"""The control plane in PostgreSQL: models, repositories, migrations."""
