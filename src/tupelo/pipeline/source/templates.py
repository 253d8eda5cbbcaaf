"""Templates as the options of a reader, which are texts: as people write them (`values.text`), or
as `as_option` encodes any template that can be sent, also of classes."""

from __future__ import annotations

from base64 import b64decode, b64encode

import msgspec
import numpy as np
import pyarrow as pa

from tupelo.errors import BadTemplate
from tupelo.values.codec import BadBytes, decode_entry
from tupelo.values.template import Template
from tupelo.values.template_encoding import (
    read_wire_extension,
    template_from_wire,
    template_to_wire,
)
from tupelo.values.text import read_template

_SPELLED = "spelled:"
_decode = msgspec.msgpack.Decoder(ext_hook=read_wire_extension).decode


def as_option(template: object) -> str:
    """A template as the text of an option. BadTemplate if it holds code."""
    wired = msgspec.msgpack.encode(template_to_wire(template))
    return _SPELLED + b64encode(wired).decode()


def from_option(text: str) -> Template:
    """The template that is written in an option."""
    if not text.startswith(_SPELLED):
        return read_template(text)
    try:
        wired = _decode(b64decode(text.removeprefix(_SPELLED), validate=True))
        found = template_from_wire(wired)
    except (ValueError, TypeError, BadBytes, RecursionError) as error:
        raise BadTemplate(f"template={text!r} cannot be read: {error}") from error
    return found if isinstance(found, Template) else Template(found)


def matching(template: Template, payloads: pa.Array) -> pa.Array:
    """Which of these entries match, as a mask. What is no entry does not."""
    found = np.zeros(len(payloads), dtype=bool)
    for place, payload in enumerate(payloads.to_pylist()):
        if payload is not None:
            shape, fields = decode_entry(payload)
            binding = template.bind(shape)
            found[place] = binding is not None and binding.test(fields)
    return pa.array(found)
