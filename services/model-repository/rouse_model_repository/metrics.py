"""Metrics of model-repository."""

from __future__ import annotations

from prometheus_client import Counter, Gauge

UPLOADS = Counter("rouse_repository_uploads_total", "Uploads of blobs, by how they ended.", ["outcome"])
UPLOADED = Counter("rouse_repository_uploaded_bytes_total", "Bytes of blobs received.")
DOWNLOADED = Counter("rouse_repository_downloaded_bytes_total", "Bytes of blobs sent.")
ARTEFACTS = Gauge("rouse_repository_models_managed", "Artefacts recorded.")
BLOBS = Gauge("rouse_repository_blobs", "Blobs stored.")
COLLECTED = Counter("rouse_repository_collected_total", "Blobs deleted because no artefact came to name them.")
