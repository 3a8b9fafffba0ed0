"""The node's disk tier: blobs by content, and folders of hard links to them: an artefact's files, and its states."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Set
from pathlib import Path, PurePosixPath

from google.protobuf.message import DecodeError

from rouse_common.errors import DataLoss, ResourceExhausted
from rouse_contracts.functions import ArtefactFile
from rouse_contracts.repository import Artefact

HEX = frozenset("0123456789abcdef")
MANIFEST = "artefact.pb"
FILES = "files"
# Of a version's id, in names of folders.
SHORT = 16
# Instances may run as another user.
FOLDER, READ_ONLY = 0o755, 0o555


def check_digest(digest: str, what: str) -> None:
    """Raises DataLoss BAD_DIGEST where a digest is no sha256 in lower-case hex."""
    if len(digest) != 64 or not HEX.issuperset(digest):
        raise DataLoss("BAD_DIGEST", f"{what} has the digest '{digest[:80]}', want 64 lower-case hex digits")


def check_files(digest: str, files: Iterable[ArtefactFile]) -> None:
    """Checks that an artefact's files stay inside its folder, once each. Raises DataLoss BAD_PATH | BAD_DIGEST."""
    seen: set[PurePosixPath] = set()
    folders: set[PurePosixPath] = set()
    for file in files:
        path = PurePosixPath(file.path)
        plain = file.path and "\\" not in file.path and "\0" not in file.path and str(path) == file.path
        if not plain or path.is_absolute() or ".." in path.parts or path == PurePosixPath("."):
            raise DataLoss("BAD_PATH", f"artefact {digest} names a file {file.path[:200]!r}, which leads elsewhere")
        if path in seen:
            raise DataLoss("BAD_PATH", f"artefact {digest} names '{file.path}' twice")
        seen.add(path)
        folders.update(p for p in path.parents if p != PurePosixPath("."))
        check_digest(file.digest, f"file '{file.path}' of artefact {digest}")
    if seen & folders:
        raise DataLoss("BAD_PATH", f"artefact {digest} uses '{min(seen & folders)}' both as a file and as a folder")


class BlobWriter:
    """A blob on its way to disk. Methods block: call them from threads."""

    def __init__(self, disk: Disk, digest: str, size_bytes: int) -> None:
        self._disk, self._digest, self._size = disk, digest, size_bytes
        handle, name = tempfile.mkstemp(dir=disk.temporary)
        self._path, self._file = Path(name), os.fdopen(handle, "wb")
        self._hash = hashlib.sha256()
        self.written_bytes = 0

    def write(self, chunk: bytes) -> None:
        """Raises DataLoss HASH_MISMATCH past the announced size, ResourceExhausted DISK_FULL."""
        if self.written_bytes + len(chunk) > self._size:
            raise self._mismatch(f"is longer than its {self._size} B")
        self._hash.update(chunk)
        try:
            self._file.write(chunk)
        except OSError as error:
            raise self._disk.full(error) from error
        self.written_bytes += len(chunk)

    def finish(self) -> None:
        """Gives the blob its place. Raises DataLoss HASH_MISMATCH, ResourceExhausted DISK_FULL."""
        try:
            self._file.close()
        except OSError as error:
            raise self._disk.full(error) from error
        if self.written_bytes != self._size:
            raise self._mismatch(f"has {self.written_bytes} B, not {self._size}")
        if self._hash.hexdigest() != self._digest:
            raise self._mismatch(f"hashes to {self._hash.hexdigest()}")
        self._path.chmod(0o444)
        self._path.replace(self._disk.blob(self._digest))

    def abandon(self) -> None:
        """Leaves nothing behind; harmless after `finish`."""
        self._file.close()
        self._path.unlink(missing_ok=True)

    def _mismatch(self, what: str) -> DataLoss:
        return DataLoss("HASH_MISMATCH", f"blob {self._digest} from model-repository {what}", blob=self._digest)


class Disk:
    """The folder of the disk tier. Methods block: call them from threads."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._blobs, self._artefacts, self.temporary = root / "blobs", root / "artefacts", root / "tmp"
        self._states, self._records, self._candidates = root / "states", root / "records", root / "candidates"

    def recover(self) -> dict[str, Artefact]:
        """Clears what was not finished and returns the artefacts that are whole."""
        shutil.rmtree(self.temporary, ignore_errors=True)
        for folder in (self._blobs, self._artefacts, self._states, self._records, self._candidates, self.temporary):
            folder.mkdir(parents=True, exist_ok=True)
        # Neither instances nor anybody else are to read or write there.
        self._candidates.chmod(0o700)
        found = {}
        for folder in list(self._artefacts.iterdir()):
            artefact = self._read(folder)
            if artefact is not None:
                found[folder.name] = artefact
            else:
                _remove_tree(folder)
        for folder in [*self._states.iterdir(), *self._candidates.iterdir()]:
            if folder.name not in found:
                _remove_tree(folder)
        for record in self._records.iterdir():
            if record.name not in found:
                record.unlink()
        for path in self._blobs.iterdir():
            if path.stat().st_nlink == 1:
                path.unlink()
        return found

    def _read(self, folder: Path) -> Artefact | None:
        try:
            artefact = Artefact.FromString((folder / MANIFEST).read_bytes())
        except (FileNotFoundError, NotADirectoryError, DecodeError):
            return None
        files = folder / FILES
        whole = artefact.digest == folder.name and all(
            (files / f.path).is_file() and (files / f.path).stat().st_size == f.size_bytes for f in artefact.files
        )
        return artefact if whole else None

    def used_bytes(self) -> int:
        """Bytes of all blobs; files of several artefacts that are equal count once."""
        return sum(path.stat().st_size for path in self._blobs.iterdir())

    def blob(self, digest: str) -> Path:
        return self._blobs / digest

    def files(self, digest: str) -> Path:
        """Folder of an artefact's files."""
        return self._artefacts / digest / FILES

    def states(self, digest: str) -> Path:
        """Folder of an artefact's materialised states; there once one was placed."""
        return self._states / digest

    def record(self, digest: str) -> Path:
        """File that says what of an artefact's states is here, and for which versions (adapters.shelf_records)."""
        return self._records / digest

    def candidates(self, digest: str, version_id: str) -> Path:
        """Folder of what requests of a version did, until a second one does the same; made if absent. Executors write
        there, and bound it."""
        folder = self._candidates_of(digest, version_id)
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def remove_candidates(self, digest: str, version_id: str) -> None:
        _remove_tree(self._candidates_of(digest, version_id))

    def _candidates_of(self, digest: str, version_id: str) -> Path:
        return self._candidates / digest / hashlib.sha256(version_id.encode()).hexdigest()[:SHORT]

    def missing(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Those of some blobs (digest: bytes) that are not here."""
        return {digest: size for digest, size in sizes.items() if not self.blob(digest).exists()}

    def place_states(self, artefact: str, blobs: Mapping[str, str], keep: Set[str]) -> None:
        """Makes an artefact's states be these (file name: blob), which are here; those that were there before go,
        with their blobs as `remove` has it. Raises ResourceExhausted DISK_FULL."""
        folder = self.states(artefact)
        if not blobs and not folder.is_dir():
            return
        try:
            folder.mkdir(mode=FOLDER, exist_ok=True)
            for name, digest in blobs.items():
                if not (folder / name).exists():
                    os.link(self.blob(digest), folder / name)
        except OSError as error:
            raise self.full(error) from error
        for path in list(folder.iterdir()):
            if path.name not in blobs:
                self._remove_state(path, keep)
        if not blobs:
            folder.rmdir()

    def adopt(self, path: Path, digest: str) -> None:
        """Takes a file of ours, whose sha256 is `digest`, for a blob. Raises ResourceExhausted DISK_FULL."""
        handle, name = tempfile.mkstemp(dir=self.temporary)
        os.close(handle)
        try:
            shutil.copyfile(path, name)
            os.chmod(name, 0o444)
            Path(name).replace(self.blob(digest))
        except OSError as error:
            Path(name).unlink(missing_ok=True)
            raise self.full(error) from error

    def _remove_state(self, path: Path, keep: Set[str]) -> int:
        """Removes a state's file and its blob; returns the bytes freed."""
        digest, size = path.name.rpartition("-")[2], path.stat().st_size
        path.unlink()
        return self._remove_blob(digest, keep, size)

    def _remove_blob(self, digest: str, keep: Set[str], size: int) -> int:
        path = self.blob(digest)
        if digest in keep or not path.exists() or path.stat().st_nlink > 1:
            return 0
        path.unlink()
        return size

    def assemble(self, artefact: Artefact) -> Path:
        """Links an artefact's files into a folder, read-only, and gives it its name when it is whole.

        Raises ResourceExhausted DISK_FULL.
        """
        target = self._artefacts / artefact.digest
        building = Path(tempfile.mkdtemp(dir=self.temporary))
        try:
            files = building / FILES
            files.mkdir()
            for file in artefact.files:
                place = files / file.path
                place.parent.mkdir(parents=True, exist_ok=True)
                os.link(self.blob(file.digest), place)
            (building / MANIFEST).write_bytes(artefact.SerializeToString())
            for folder, _, _ in os.walk(files):
                os.chmod(folder, READ_ONLY)
            os.chmod(building, FOLDER)
            building.rename(target)
        except OSError as error:
            _remove_tree(building)
            raise self.full(error) from error
        return target / FILES

    def remove(self, artefact: Artefact, keep: Set[str]) -> int:
        """Removes an artefact and its blobs, but those that others name and those in `keep`, which are about
        to be named. Returns the bytes freed."""
        freed, states = 0, self.states(artefact.digest)
        if states.is_dir():
            freed += sum(self._remove_state(path, keep) for path in list(states.iterdir()))
            states.rmdir()
        self.record(artefact.digest).unlink(missing_ok=True)
        _remove_tree(self._candidates / artefact.digest)
        _remove_tree(self._artefacts / artefact.digest)
        for digest, size in {f.digest: f.size_bytes for f in artefact.files}.items():
            freed += self._remove_blob(digest, keep, size)
        return freed

    def full(self, error: OSError) -> Exception:
        """DISK_FULL where that is what the error says; else the error itself."""
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            return error
        return ResourceExhausted(
            "DISK_FULL",
            f"the disk behind {self._root} is full although --cache-size is not used up; free some space or lower it",
            retry_after_s=5.0,
        )


def _remove_tree(folder: Path) -> None:
    """Removes a folder whose sub-folders are read-only."""
    if not folder.is_dir():
        folder.unlink(missing_ok=True)
        return
    for inner, _, _ in os.walk(folder):
        os.chmod(inner, 0o700)
    shutil.rmtree(folder)
