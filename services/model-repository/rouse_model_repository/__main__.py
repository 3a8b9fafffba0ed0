"""Starts model-repository."""

from __future__ import annotations

import sys

from rouse_common import lifecycle
from rouse_model_repository.app import ModelRepositoryApp
from rouse_model_repository.config import ModelRepositoryConfig


def main() -> int:
    return lifecycle.main("model-repository", ModelRepositoryConfig, ModelRepositoryApp)


if __name__ == "__main__":
    sys.exit(main())
