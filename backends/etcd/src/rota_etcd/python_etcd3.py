# SPDX-License-Identifier: MIT
"""python-etcd3 (``etcd3`` on PyPI) beside rota: its client as the connection, and a way to import it with today's protobuf.

Its last release, 0.12.0 of 2020, holds generated code that protobuf 4 and newer refuse to import. Its messages are the same ones, though:
`install` makes them anew from the descriptors in that code, in a pool of their own, before ``import etcd3``.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import grpc
from google.protobuf import descriptor_pb2
from rota.backend import Backend
from rota.errors import ConfigurationError, Unavailable
from rota.url import Url, parse

from ._clock import members
from ._link import HAS_LEADER, Link, Metadata
from ._url import OPTIONS, settings
from ._wire import classes
from .driver import EtcdDriver

#: In the order in which they need each other.
_FILES = ("kv_pb2.py", "auth_pb2.py", "rpc_pb2.py")


def install() -> None:
    """Make ``import etcd3`` work with protobuf 4 and newer; where it works without, nothing is done.

    Call it before anything imports ``etcd3``.

    Raises:
        ConfigurationError: ``etcd3`` is not installed, or is no version that holds such code.
    """
    try:
        import etcd3  # noqa: F401
    except ImportError:
        pass
    except TypeError:  # "Descriptors cannot be created directly"
        for name in [name for name in sys.modules if name.partition(".")[0] == "etcd3"]:
            del sys.modules[name]
    else:
        return
    spec = importlib.util.find_spec("etcd3")
    if spec is None or not spec.submodule_search_locations:
        raise ConfigurationError("etcd3 is not installed: pip install 'rota-etcd[python-etcd3]'")
    folder = Path(spec.submodule_search_locations[0]) / "etcdrpc"
    sys.modules["etcd3.etcdrpc"] = _module(b"".join(_as_set(folder / file) for file in _FILES))


def _as_set(path: Path) -> bytes:
    """Return the FileDescriptorSet of the one file that generated code describes; such sets can be joined."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"etcd3 has no {path.name} that rota knows: {error.strerror}") from error
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == "serialized_pb" and isinstance(node.value, ast.Call):
            text = ast.literal_eval(node.value.args[0])
            file = descriptor_pb2.FileDescriptorProto.FromString(text.encode("latin-1"))
            return bytes(descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString())
    raise ConfigurationError(f"etcd3 has a {path.name} that rota does not know; only 0.12.0 and its like need this")


def _module(descriptors: bytes) -> ModuleType:
    """Return what ``etcd3.etcdrpc`` is to hold: messages, constants of enumerations, and stubs."""
    module = ModuleType("etcd3.etcdrpc")
    messages = classes(descriptors)
    for file in descriptor_pb2.FileDescriptorSet.FromString(descriptors).file:
        if file.name != "rpc.proto":
            continue
        for message in file.message_type:
            setattr(module, message.name, messages[f"{file.package}.{message.name}"])
        for enum in file.enum_type:
            for value in enum.value:
                setattr(module, value.name, value.number)
        for service in file.service:
            setattr(module, f"{service.name}Stub", _stub(file.package, service, messages))
    return module


def _stub(package: str, service: Any, messages: dict[str, Any]) -> type:
    def __init__(self: Any, channel: grpc.Channel) -> None:  # noqa: N807
        for method in service.method:
            kind = f"{'stream' if method.client_streaming else 'unary'}_{'stream' if method.server_streaming else 'unary'}"
            request, response = messages[method.input_type[1:]], messages[method.output_type[1:]]
            path = f"/{package}.{service.name}/{method.name}"
            setattr(self, method.name, getattr(channel, kind)(path, request.SerializeToString, response.FromString))

    return type(f"{service.name}Stub", (), {"__init__": __init__})


class _ClientEndpoints:
    """The channel and token of a client object; both are looked up for each call."""

    count = 1
    credentials: Metadata | None = None
    keeps_channels = False
    unchecked = False  # whom the client gave is its own business

    def __init__(self, client: Any) -> None:
        self._client = client
        self._forked = False

    def channel(self, index: int) -> grpc.Channel:
        """As `Endpoints.channel`."""
        if self._forked:
            raise Unavailable("a client of python-etcd3 does not work in a forked child: make one there")
        return self._client.channel

    def leave(self, index: int, since: float) -> bool:
        """As `Endpoints.leave`: its channel is the caller's."""
        return False

    def metadata(self, fresh: bool, login: Callable[[Any], Any]) -> Metadata:
        """As `Endpoints.metadata`."""
        if fresh:
            raise ConfigurationError("the token of the python-etcd3 client is not valid any more, and it knows no other: make a new client")
        return (*HAS_LEADER, *(self._client.metadata or ()))

    def after_fork(self) -> None:
        """As `Endpoints.after_fork`."""
        self._forked = True

    def close(self) -> None:
        """The client is the caller's."""


class _ClientBackend(Backend):
    contract = 1
    options = OPTIONS

    def __init__(self, client: Any, url: Url) -> None:
        self._client = client
        self.url = url

    def driver(self, url: Url) -> EtcdDriver:
        parsed = settings(url)
        return EtcdDriver(Link(_ClientEndpoints(self._client)), members(parsed)[:1], parsed)


def backend_for(client: Any, url: str = "") -> Backend:
    """Return a backend around a client of python-etcd3, for `rota.connect` in a URL's place.

    Its channel and token carry rota's calls; its own calls, timeouts and threads are not used.

    Args:
        client: An ``etcd3.Etcd3Client``, or what has ``channel`` and ``metadata`` as it does.
        url: Where keys go and where the member answers HTTP, as ``etcds://HOST:2379/PREFIX?cacert=…``; needed for TLS, whose certificates
            the client does not tell. Default: the client's address.

    Raises:
        ConfigurationError: It is no such client, or the URL is wrong.
    """
    if not hasattr(client, "channel") or not hasattr(client, "metadata"):
        raise ConfigurationError(f"{type(client).__name__} is no client of python-etcd3: it has no channel and metadata")
    if not url and not hasattr(client, "_url"):
        raise ConfigurationError("the client does not tell its address: name it, as backend_for(client, 'etcd://HOST:2379')")
    return _ClientBackend(client, parse(url or f"etcd://{client._url}"))
