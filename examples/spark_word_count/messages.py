"""The message type of the counts, as a generated module of this source has it:

    message NGramCount {
      bytes uuid = 1;
      string n_gram = 2;
      uint64 count = 3;
    }

Workers of Spark import it from here, by the option `messageType`.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_FIELD = descriptor_pb2.FieldDescriptorProto
_FILE = descriptor_pb2.FileDescriptorProto(name="n_gram_count.proto", syntax="proto3")
_FILE.package = "examples.spark_word_count"
_MESSAGE = _FILE.message_type.add(name="NGramCount")
for _number, (_name, _type) in enumerate(
    {"uuid": _FIELD.TYPE_BYTES, "n_gram": _FIELD.TYPE_STRING, "count": _FIELD.TYPE_UINT64}.items(),
    start=1,
):
    _MESSAGE.field.add(name=_name, number=_number, type=_type, label=_FIELD.LABEL_OPTIONAL)

_POOL = descriptor_pool.DescriptorPool()
_POOL.Add(_FILE)
NGramCount: Any = message_factory.GetMessageClass(
    _POOL.FindMessageTypeByName(f"{_FILE.package}.{_MESSAGE.name}")
)
