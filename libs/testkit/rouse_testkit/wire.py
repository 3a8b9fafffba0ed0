"""Messages of the ring between a function and its executor, made by hand (native/include/rouse/wire/format.h).

For tests and benchmarks of what lies between the two, without PyTorch in their own process.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence

TEMPLATE, CALL, CREATE, FREE, WRITE, READ, BEGIN, END = 1, 3, 4, 6, 7, 8, 11, 12
DATA = 64
FLOAT = 6  # c10::ScalarType
_TENSOR, _INT, _NEW = 1, 4, 15
_DATA_HEAD = 32


def _message(kind: int, *parts: bytes) -> bytes:
    body = b"".join(parts)
    return struct.pack("<IHH", 8 + len(body), kind, 0) + body


def _words(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}Q", *values)


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 8)


def tensor(sizes: Sequence[int], tag: int = _TENSOR) -> bytes:
    """An item that describes a contiguous float32 tensor at the start of its storage."""
    strides = [math.prod(sizes[i + 1 :]) for i in range(len(sizes))]
    item = struct.pack("<BBBBI", tag, FLOAT, 0, len(sizes), 0) + _words(0, *sizes, *strides)
    return item + _words(4 * math.prod(sizes)) if tag == _NEW else item


def integer(value: int) -> bytes:
    """An item that is an int argument."""
    return struct.pack("<BBBBI", _INT, 0, 0, 0, 0) + struct.pack("<q", value)


def template(number: int, name: str, overload: str, arguments: Sequence[bytes], result: Sequence[int]) -> bytes:
    """TEMPLATE of an operator with one result of `result` sizes in a storage of its own."""
    given, made = b"".join(arguments), tensor(result, _NEW)
    head = struct.pack("<IHHII", number, len(name), len(overload), len(given), len(made))
    return _message(TEMPLATE, head, _padded(name.encode()), _padded(overload.encode()), given, made)


def call(number: int, arguments: Sequence[int], result: int) -> bytes:
    """CALL of a template with these storages."""
    return _message(CALL, struct.pack("<IHH", number, len(arguments), 1), _words(*arguments, result))


def create(name: int, size_bytes: int) -> bytes:
    """CREATE of a storage; of one at an address, where the name is one."""
    return _message(CREATE, _words(name, size_bytes))


def free(*names: int) -> bytes:
    """FREE."""
    return _message(FREE, _words(*names))


def write(name: int, data: bytes) -> bytes:
    """WRITE of a whole storage."""
    return _message(WRITE, _words(name, 0, len(data)), _padded(data))


def read(name: int, size_bytes: int) -> bytes:
    """READ of a storage's first bytes; `data` takes the answer apart."""
    return _message(READ, _words(name, 0, size_bytes))


def data(answer: bytes) -> bytes:
    """What DATA carries. Raises AssertionError for any other message."""
    kind = int.from_bytes(answer[4:6], "little")
    assert kind == DATA, f"the executor answered with a message of kind {kind}: {answer[:512]!r}"
    (count,) = struct.unpack_from("<Q", answer, _DATA_HEAD - 8)
    return answer[_DATA_HEAD : _DATA_HEAD + count]


def begin(request: int, signature: tuple[int, int], inputs: Sequence[int]) -> bytes:
    """BEGIN of a request."""
    return _message(BEGIN, _words(request, *signature), struct.pack("<II", len(inputs), 0), _words(*inputs))


def end(request: int, outputs: Sequence[tuple[int, Sequence[int]]]) -> bytes:
    """END of a request with its outputs: storage and sizes."""
    described = [_words(name) + tensor(sizes) for name, sizes in outputs]
    return _message(END, _words(request), struct.pack("<II", len(outputs), 0), *described)


class Layers:
    """A tiny model, message by message: `count` times x = tanh(x @ W), with W of `width` * `width` float32.

    Args:
        base: where its weights lie, one matrix after the other.
    """

    SIGNATURE = (1, 2)

    def __init__(self, count: int, width: int, base: int) -> None:
        self.count, self.width, self._base = count, width, base
        self.matrix_bytes = 4 * width * width

    @property
    def weights(self) -> list[int]:
        """Addresses of the matrices."""
        return [self._base + index * self.matrix_bytes for index in range(self.count)]

    def setup(self) -> list[bytes]:
        """What a session hears first."""
        row, matrix = (1, self.width), (self.width, self.width)
        return [
            template(0, "aten::mm", "", [tensor(row), tensor(matrix)], row),
            template(1, "aten::tanh", "", [tensor(row)], row),
            *(create(address, self.matrix_bytes) for address in self.weights),
        ]

    def request(self, number: int, values: bytes) -> list[bytes]:
        """One request; the last message is answered by DATA with the result. Uses storages 1 to 2 * count + 1."""
        messages = [create(1, len(values)), write(1, values), begin(number, self.SIGNATURE, [1])]
        for index, address in enumerate(self.weights):
            messages.append(call(0, [2 * index + 1, address], 2 * index + 2))
            messages.append(call(1, [2 * index + 2], 2 * index + 3))
        last = 2 * self.count + 1
        messages.append(end(number, [(last, (1, self.width))]))
        return [*messages, read(last, 4 * self.width)]

    def done(self) -> bytes:
        """Frees what a request made."""
        return free(*range(1, 2 * self.count + 2))
