# SPDX-License-Identifier: MIT
"""The files of TLS, looked at before gRPC takes them: what is wrong with one it would tell as a member that can't be reached."""

from __future__ import annotations

import ssl

from rota.errors import ConfigurationError

from ._url import Settings


def files(settings: Settings) -> tuple[bytes | None, bytes | None, bytes | None]:
    """Return the certificates to trust, the client's key and its certificate, as far as they are given.

    Raises:
        ConfigurationError: One can't be read, or holds something else.
    """
    trusted = settings.cacert or ssl.get_default_verify_paths().cafile or ""  # the system's; gRPC's own list is another one
    read = _file(trusted), _file(settings.key), _file(settings.cert)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        if settings.cacert:
            context.load_verify_locations(settings.cacert)
    except ssl.SSLError as error:
        raise ConfigurationError(f"{settings.cacert} holds no certificate in PEM form") from error
    try:
        if settings.cert:
            context.load_cert_chain(settings.cert, settings.key, password="")
    except ssl.SSLError as error:
        raise ConfigurationError(f"{settings.cert} and {settings.key} are no certificate and its key in PEM form, unencrypted") from error
    return read


def _file(path: str) -> bytes | None:
    if not path:
        return None
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise ConfigurationError(f"{path} can't be read: {error.strerror}") from error
