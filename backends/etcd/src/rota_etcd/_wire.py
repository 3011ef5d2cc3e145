# SPDX-License-Identifier: MIT
"""etcd's messages, made from ``etcd.binpb`` in a descriptor pool of our own.

There is no generated code, so any protobuf from 4.21 on will do, and no other client's stubs can clash with these.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory


def classes(descriptors: bytes) -> dict[str, Any]:
    """Return the message classes of a serialized FileDescriptorSet, by their full names."""
    pool = descriptor_pool.DescriptorPool()
    names = []
    for file in descriptor_pb2.FileDescriptorSet.FromString(descriptors).file:
        pool.AddSerializedFile(file.SerializeToString())
        names += [f"{file.package}.{message.name}" for message in file.message_type]
    if hasattr(message_factory, "GetMessageClass"):
        return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(name)) for name in names}
    factory: Any = message_factory.MessageFactory(pool)  # protobuf 4.21
    return {name: factory.GetPrototype(pool.FindMessageTypeByName(name)) for name in names}


_messages = classes(files(__package__).joinpath("etcd.binpb").read_bytes())

Authenticate = _messages["rota_etcd.AuthenticateRequest"]
Compare = _messages["rota_etcd.Compare"]
Delete = _messages["rota_etcd.DeleteRangeRequest"]
KeepAlive = _messages["rota_etcd.LeaseKeepAliveRequest"]
Grant = _messages["rota_etcd.LeaseGrantRequest"]
Put = _messages["rota_etcd.PutRequest"]
Range = _messages["rota_etcd.RangeRequest"]
RequestOp = _messages["rota_etcd.RequestOp"]
Revoke = _messages["rota_etcd.LeaseRevokeRequest"]
Status = _messages["rota_etcd.StatusRequest"]
Txn = _messages["rota_etcd.TxnRequest"]
Watch = _messages["rota_etcd.WatchRequest"]
WatchCreate = _messages["rota_etcd.WatchCreateRequest"]

NOPUT = WatchCreate.Filter.Value("NOPUT")
DELETE = _messages["rota_etcd.Event"].Type.Value("DELETE")
CREATE, MOD, VALUE = (Compare.Target.Value(name) for name in ("CREATE", "MOD", "VALUE"))

#: By the type of the request: the method's path, and how to read its response.
METHODS: dict[type[Any], tuple[str, Any]] = {
    request: (f"/etcdserverpb.{path}", _messages[f"rota_etcd.{response}"].FromString)
    for request, path, response in (
        (Authenticate, "Auth/Authenticate", "AuthenticateResponse"),
        (Grant, "Lease/LeaseGrant", "LeaseGrantResponse"),
        (KeepAlive, "Lease/LeaseKeepAlive", "LeaseKeepAliveResponse"),
        (Range, "KV/Range", "RangeResponse"),
        (Revoke, "Lease/LeaseRevoke", "LeaseRevokeResponse"),
        (Status, "Maintenance/Status", "StatusResponse"),
        (Txn, "KV/Txn", "TxnResponse"),
        (Watch, "Watch/Watch", "WatchResponse"),
    )
}
