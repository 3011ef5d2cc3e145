# SPDX-License-Identifier: MIT
"""The messages: compiled from etcd.proto as it is, in a pool of their own."""

from __future__ import annotations

import importlib.resources
import subprocess
import sys
from pathlib import Path

import rota_etcd
from google.protobuf import descriptor_pb2


def test_the_compiled_messages_are_those_of_the_source(tmp_path: Path) -> None:
    with importlib.resources.as_file(importlib.resources.files(rota_etcd)) as folder:
        command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{folder}", f"--descriptor_set_out={tmp_path / 'new'}", "etcd.proto"]
        subprocess.run(command, check=True)
        kept = descriptor_pb2.FileDescriptorSet.FromString((folder / "etcd.binpb").read_bytes())
    assert kept == descriptor_pb2.FileDescriptorSet.FromString((tmp_path / "new").read_bytes())


def test_nothing_is_put_into_the_pool_that_all_clients_share() -> None:
    from google.protobuf import descriptor_pool
    from rota_etcd import _wire

    assert _wire.Txn().DESCRIPTOR.file.name == "etcd.proto"
    try:
        descriptor_pool.Default().FindFileByName("etcd.proto")
    except KeyError:
        return
    raise AssertionError("etcd.proto is in the default pool")
