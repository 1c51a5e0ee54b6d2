"""Read scalars from event files of TensorBoard.

Records: https://www.tensorflow.org/tutorials/load_data/tfrecord#tfrecords_format_details; their messages are ``Event`` of
tensorflow/core/util/event.proto, with ``Summary`` and ``TensorProto`` of tensorflow/core/framework, in the encoding of
https://protobuf.dev/programming-guides/encoding. Checksums are not verified.
"""

from __future__ import annotations

import os
import struct
from typing import Any, Iterator, List, Optional, Tuple

from trainctl.base.filesystem.files import open_file

MARK = "tfevents"
"""Part of the name of each such file."""
_READ_BYTES = 2**22
_HEAD, _TAIL = 12, 4  # length and its checksum; checksum
_VARINT, _DOUBLE, _BYTES, _FLOAT = 0, 1, 2, 5
_SIZES = {_DOUBLE: 8, _FLOAT: 4}

Scalar = Tuple[str, float, int, float]
"""Tag, value, step, and time in Unix seconds."""


def read_scalars(path: str, offset: int) -> Tuple[List[Scalar], int]:
    """Return scalars from an offset on, and the offset of the next record, the same at the end; OSError if unreadable.

    A corrupt file ends where it is corrupt. Something that isn't a file has none.
    """
    found: List[Scalar] = []
    stream = open_file(path)
    if stream is None:
        return found, offset
    with stream:
        total = stream.seek(0, os.SEEK_END)
        stream.seek(offset)
        data = stream.read(_READ_BYTES)
    at = 0
    while at + _HEAD <= len(data):
        end = at + _HEAD + struct.unpack("<Q", data[at : at + 8])[0] + _TAIL
        if offset + end > total or (at and end > len(data)):
            break  # the next call reads it
        try:
            if end <= len(data):  # no scalar is larger: an image or a graph
                found += _scalars(data[at + _HEAD : end - _TAIL])
        except (AttributeError, KeyError, TypeError, ValueError, struct.error):
            break
        at = end
    return found, offset + at


def _scalars(data: bytes) -> Iterator[Scalar]:
    event = dict(_fields(data))  # wall_time, step, summary
    (time,) = struct.unpack("<d", event[1])
    step = event.get(2, 0)
    for number, data in _fields(event.get(5, b"")):
        if number == 1:
            value = dict(_fields(data))  # tag, simple_value, tensor
            scalar = struct.unpack("<f", value[2])[0] if 2 in value else None
            scalar = _tensor_scalar(value[8]) if 8 in value else scalar
            if scalar is not None:
                yield value[1].decode(), scalar, step - 2**64 if step >= 2**63 else step, time


def _tensor_scalar(data: bytes) -> Optional[float]:
    """Return the number in a tensor of one float or double; None for others."""
    tensor = dict(_fields(data))  # dtype; tensor_content, float_val or double_val
    form = {1: "<f", 2: "<d"}.get(tensor.get(1, 0))
    content = tensor.get(4) or tensor.get(5) or tensor.get(6) or b""
    if not form or len(content) != struct.calcsize(form):
        return None
    return float(struct.unpack(form, content)[0])


def _fields(message: bytes) -> Iterator[Tuple[int, Any]]:
    """Yield number and value of each field, bytes or an integer; ValueError if the message is corrupt."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        value: Any = 0
        if key & 7 not in _SIZES:
            value, at = _varint(message, at)
        if key & 7 != _VARINT:
            size = _SIZES.get(key & 7, value)
            value = message[at : at + size]
            at += size
            if at > len(message) or key & 7 not in (*_SIZES, _BYTES):
                raise ValueError("corrupt message")
        yield key >> 3, value


def _varint(message: bytes, at: int) -> Tuple[int, int]:
    value = 0
    for number, byte in enumerate(message[at : at + 10]):
        value |= (byte & 0x7F) << 7 * number
        if byte < 0x80:
            return value, at + number + 1
    raise ValueError("corrupt number")
