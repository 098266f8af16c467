"""Protobuf messages of the tests, which workers import as well."""

from __future__ import annotations

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_FIELD = descriptor_pb2.FieldDescriptorProto
_FILE = descriptor_pb2.FileDescriptorProto(
    name="gazette_aio_tests_pyspark.proto", package="gazette_aio_tests", syntax="proto3"
)
_TYPE = _FILE.message_type.add(name="NGramCount")
_TYPE.field.add(name="uuid", number=1, type=_FIELD.TYPE_BYTES, label=_FIELD.LABEL_OPTIONAL)
_TYPE.field.add(name="n_gram", number=2, type=_FIELD.TYPE_STRING, label=_FIELD.LABEL_OPTIONAL)
_TYPE.field.add(name="count", number=3, type=_FIELD.TYPE_UINT64, label=_FIELD.LABEL_OPTIONAL)
_POOL = descriptor_pool.DescriptorPool()
_POOL.Add(_FILE)
NGramCount = message_factory.GetMessageClass(
    _POOL.FindMessageTypeByName("gazette_aio_tests.NGramCount")
)
