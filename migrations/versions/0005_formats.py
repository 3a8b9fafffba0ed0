"""Artefacts may be programs of torch.export.

Revision ID: 0005
Revises: 0004
"""

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.drop_constraint(op.f("ck_artefacts_format"), "artefacts")
    op.create_check_constraint(
        op.f("ck_artefacts_format"), "artefacts", "format IN ('HUGGING_FACE', 'PYTHON', 'TORCH_EXPORT')"
    )


def downgrade() -> None:
    op.drop_constraint(op.f("ck_artefacts_format"), "artefacts")
    op.create_check_constraint(op.f("ck_artefacts_format"), "artefacts", "format IN ('HUGGING_FACE', 'PYTHON')")
