"""A folder to deploy: its files, and what it says of its function. Everything is checked before anything is sent."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from rouse import exported, triton
from rouse import manifest as manifests
from rouse.errors import PackageError
from rouse.manifest import Manifest

CONFIG = "config.json"
MAX_FILES = 10_000
MAX_FILE_BYTES = 16 << 30
MAX_PATH_BYTES = 1024
MAX_TEXT_BYTES = 8 << 20
IGNORED = frozenset({"__pycache__"})
IGNORED_SUFFIXES = (".pyc", ".pyo")
# What the mesh takes for a pickle by its name; by its content it finds more.
PICKLED_SUFFIXES = frozenset(
    {".pkl", ".pickle", ".pck", ".pcl", ".dill", ".pt", ".pth", ".bin", ".ckpt", ".joblib", ".torch", ".mar"}
)
PICKLE_MARKS = tuple(bytes([0x80, protocol]) for protocol in range(2, 6))
READ_BYTES = 4 << 20


@dataclass(frozen=True)
class PackageFile:
    """A file of a package. `path` is relative to the folder, with '/' between its parts."""

    path: str
    source: Path
    size_bytes: int


@dataclass(frozen=True)
class Package:
    """A folder that was read and found fit to deploy."""

    folder: Path
    default_name: str
    format: str
    manifest: Manifest
    files: tuple[PackageFile, ...]
    # Holds files that were made for the package; they go when it goes.
    made: TemporaryDirectory[str] | None = field(default=None, repr=False, compare=False)
    # What the folder says and the function will not do, in words.
    ignored: tuple[str, ...] = ()

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


def read_package(folder: str | os.PathLike[str]) -> Package:
    """Reads a folder with a rouse.toml, a Hugging Face directory (config.json and *.safetensors), or a program of
    torch.export (model.pt2), or a model of a Triton model repository (config.pbtxt).

    Hidden files, .git, __pycache__ and compiled Python are left out. Raises PackageError with the
    reason that the mesh would give: BAD_ARTEFACT, BAD_PATH, BAD_SPEC, BAD_NAME or PICKLE_REFUSED.
    """
    root = Path(folder)
    if not root.is_dir():
        what = "is not a folder" if root.exists() else "does not exist"
        raise PackageError(f"{root} {what}", reason="BAD_ARTEFACT", metadata={"path": str(root)})
    model = triton.read(root) if triton.is_model(root) and not (root / manifests.FILE).exists() else None
    files = tuple(sorted(_walk(root), key=lambda file: file.path))
    if model is not None:
        chosen = triton.kept({file.path for file in files}, model.version)
        files = tuple(file for file in files if file.path in chosen)
        name = model.manifest.name or root.resolve().name
        return Package(root, name, "PYTHON", model.manifest, files, ignored=model.notes)
    if not files:
        raise PackageError(f"{root} holds no files", reason="BAD_ARTEFACT", metadata={"path": str(root)})
    paths = {file.path for file in files}
    manifest = _read_manifest(root) if manifests.FILE in paths else Manifest()
    if manifest.handler:
        _check_python(root, manifest, paths)
        kind = "PYTHON"
    elif CONFIG in paths:
        _check_hugging_face(root, paths)
        kind = "HUGGING_FACE"
    elif exported.ARCHIVE in paths:
        files, made = _convert(root, files)
        return Package(root, manifest.name or root.resolve().name, "TORCH_EXPORT", manifest, files, made)
    else:
        models = triton.models_in(root)
        hint = f"; it is a model repository: deploy one of its models ({', '.join(models[:5])})" if models else ""
        raise PackageError(
            f"{root} holds neither a {manifests.FILE} with a handler nor a {CONFIG} nor a {exported.ARCHIVE}{hint}",
            reason="BAD_ARTEFACT",
            metadata={"path": str(root)},
        )
    return Package(root, manifest.name or root.resolve().name, kind, manifest, files)


def _convert(root: Path, files: Sequence[PackageFile]) -> tuple[tuple[PackageFile, ...], TemporaryDirectory[str]]:
    """The files of a folder with a program of torch.export, what is made of the program among them."""
    made = TemporaryDirectory(prefix="rouse-")
    converted = exported.convert(root / exported.ARCHIVE, Path(made.name))
    names = {path.name for path in converted}
    for file in files:
        if file.path in names:
            raise PackageError(
                f"{root}: {file.path} is made out of {exported.ARCHIVE}; rename or remove it", reason="BAD_ARTEFACT"
            )
    kept = [file for file in files if file.path != exported.ARCHIVE]
    kept += [PackageFile(path.name, path, path.stat().st_size) for path in converted]
    return tuple(sorted(kept, key=lambda file: file.path)), made


def hash_files(files: Sequence[PackageFile], advance: Callable[[int], None]) -> list[str]:
    """sha256 of every file, lower-case hex, in their order; `advance` gets the bytes that were read.

    Hashing releases the interpreter's lock, so threads help. Raises PackageError where a file went away.
    """
    with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
        return list(pool.map(lambda file: _hash(file, advance), files))


def _hash(file: PackageFile, advance: Callable[[int], None]) -> str:
    digest = hashlib.sha256()
    try:
        with file.source.open("rb", buffering=0) as stream:
            buffer = bytearray(READ_BYTES)
            view = memoryview(buffer)
            while count := stream.readinto(buffer):
                digest.update(view[:count])
                advance(count)
    except OSError as error:
        raise _unreadable(file.source, error) from None
    return digest.hexdigest()


def _walk(root: Path) -> Iterator[PackageFile]:
    count = 0

    def refuse(error: OSError) -> None:
        raise _unreadable(Path(error.filename), error)

    for folder, folders, names in os.walk(root, onerror=refuse):
        folders[:] = sorted(name for name in folders if not _ignored(name))
        for name in folders:
            if Path(folder, name).is_symlink():
                raise _bad_path(
                    _relative(root, Path(folder, name)), "is a link to a folder; put the folder itself there"
                )
        for name in names:
            if _ignored(name):
                continue
            count += 1
            if count > MAX_FILES:
                raise PackageError(f"{root} holds more than {MAX_FILES} files", reason="BAD_ARTEFACT")
            yield _file(root, Path(folder, name))


def _ignored(name: str) -> bool:
    return name.startswith(".") or name in IGNORED or name.endswith(IGNORED_SUFFIXES)


def _relative(root: Path, path: Path) -> str:
    return path.relative_to(root).as_posix()


def _file(root: Path, source: Path) -> PackageFile:
    path = _relative(root, source)
    if any(_odd(char) for char in path) or len(os.fsencode(path)) > MAX_PATH_BYTES:
        raise _bad_path(path, f"has a name with odd characters or of more than {MAX_PATH_BYTES} bytes")
    try:
        # Links to files are followed: the Hugging Face cache is made of them.
        found = source.stat()
    except OSError as error:
        raise _unreadable(source, error) from None
    if not stat.S_ISREG(found.st_mode):
        raise _bad_path(path, "is not a regular file")
    if source.suffix.lower() in PICKLED_SUFFIXES or _begins_as_pickle(source):
        raise PackageError(
            f"{path} holds pickled weights, which can run any code when they are loaded; Rouse takes safetensors only",
            reason="PICKLE_REFUSED",
            metadata={"path": path},
        )
    if found.st_size > MAX_FILE_BYTES:
        raise PackageError(
            f"{path} has {found.st_size} bytes, more than the {MAX_FILE_BYTES} of one file",
            reason="BAD_ARTEFACT",
            metadata={"path": path},
        )
    return PackageFile(path, source, found.st_size)


def _odd(char: str) -> bool:
    """Control characters, backslashes, and what stands for bytes that are no text."""
    return ord(char) < 0x20 or ord(char) == 0x7F or char == "\\" or 0xD800 <= ord(char) <= 0xDFFF


def _begins_as_pickle(source: Path) -> bool:
    try:
        with source.open("rb") as stream:
            return stream.read(2).startswith(PICKLE_MARKS)
    except OSError as error:
        raise _unreadable(source, error) from None


def _read_manifest(root: Path) -> Manifest:
    return manifests.parse(_read_text(root / manifests.FILE, "BAD_SPEC"))


def _read_text(path: Path, reason: str) -> str:
    try:
        with path.open("rb") as stream:
            content = stream.read(MAX_TEXT_BYTES + 1)
        if len(content) > MAX_TEXT_BYTES:
            raise PackageError(f"{path} is larger than {MAX_TEXT_BYTES} bytes", reason=reason)
        return content.decode()
    except UnicodeDecodeError:
        raise PackageError(f"{path} is not UTF-8", reason=reason) from None
    except OSError as error:
        raise _unreadable(path, error) from None


def _check_python(root: Path, manifest: Manifest, paths: set[str]) -> None:
    module = manifest.handler.partition(":")[0].replace(".", "/")
    if not paths & {f"{module}.py", f"{module}/__init__.py"}:
        raise PackageError(
            f"{manifests.FILE}: the handler '{manifest.handler}' needs {module}.py, which {root} does not hold",
            reason="BAD_SPEC",
        )
    for kind, specs in (("inputs", manifest.inputs), ("outputs", manifest.outputs)):
        if not specs:
            raise PackageError(
                f"{manifests.FILE}: a Python function must declare its {kind}, each as [[{kind}]] with name, "
                "datatype and shape",
                reason="BAD_SPEC",
            )


def _check_hugging_face(root: Path, paths: set[str]) -> None:
    where = {"path": str(root)}
    try:
        config = json.loads(_read_text(root / CONFIG, "BAD_ARTEFACT"))
    except (ValueError, RecursionError) as error:
        raise PackageError(f"{root / CONFIG} is not JSON: {error}", reason="BAD_ARTEFACT", metadata=where) from None
    if not isinstance(config, dict) or not config.get("architectures"):
        raise PackageError(
            f"{root / CONFIG} names no model class under 'architectures'", reason="BAD_ARTEFACT", metadata=where
        )
    if not any(path.endswith(".safetensors") for path in paths):
        raise PackageError(f"{root} has a {CONFIG} but no *.safetensors", reason="BAD_ARTEFACT", metadata=where)


def _bad_path(path: str, what: str) -> PackageError:
    return PackageError(f"{path!r} {what}", reason="BAD_PATH", metadata={"path": path})


def _unreadable(path: Path, error: OSError) -> PackageError:
    return PackageError(f"{path} cannot be read: {error.strerror}", reason="BAD_ARTEFACT", metadata={"path": str(path)})
