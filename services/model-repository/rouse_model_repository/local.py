"""`python -m rouse_model_repository.local FOLDER`: what the mesh would make of a folder, without a mesh.

Writes the record (a serialised rouse.repository.v1.Artefact) to standard output, for `rouse dev`. What the mesh
would refuse is a JSON object on standard error, and exit code 1.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
from collections.abc import AsyncGenerator
from pathlib import Path

from rouse_common.errors import InvalidArgument, RouseError
from rouse_contracts.functions import ArtefactFile
from rouse_contracts.repository import Artefact
from rouse_model_repository.inspection import paths, pickles
from rouse_model_repository.inspector import Inspector

CHUNK_BYTES = 4 << 20


class Folder:
    """A folder's files in place of blobs; a file's digest is that of its path and not of its content."""

    def __init__(self, root: Path) -> None:
        found = sorted(path for path in root.rglob("*") if path.is_file())
        self._sources = {hashlib.sha256(str(path).encode()).hexdigest(): path for path in found}
        self.files = [
            ArtefactFile(path=path.relative_to(root).as_posix(), digest=digest, size_bytes=path.stat().st_size)
            for digest, path in self._sources.items()
        ]

    async def read_blob(self, digest: str, offset: int, length: int) -> AsyncGenerator[bytes, None]:
        with self._sources[digest].open("rb") as file:
            file.seek(offset)
            while length and (chunk := file.read(min(CHUNK_BYTES, length))):
                length -= len(chunk)
                yield chunk

    def check(self) -> None:
        """Raises InvalidArgument BAD_PATH | PICKLE_REFUSED."""
        paths.check_files(self.files)
        for file in self.files:
            with self._sources[file.digest].open("rb") as content:
                why = pickles.by_name(file.path) or pickles.by_content(content)
            if why:
                raise InvalidArgument("PICKLE_REFUSED", f"{file.path}: {why}, which can run any code", file=file.path)


async def inspect(root: Path) -> Artefact:
    """The record of a folder. Raises InvalidArgument as a deployment would."""
    folder = await asyncio.to_thread(Folder, root)
    await asyncio.to_thread(folder.check)
    return await Inspector(folder).inspect(paths.manifest_digest(folder.files), folder.files)


def main(root: Path) -> int:
    try:
        artefact = asyncio.run(inspect(root))
    except RouseError as error:
        told = {"reason": error.reason, "message": error.message, "metadata": error.metadata}
        print(json.dumps(told), file=sys.stderr)
        return 1
    sys.stdout.buffer.write(artefact.SerializeToString())
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
