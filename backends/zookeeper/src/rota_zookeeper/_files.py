# SPDX-License-Identifier: MIT
"""The files of TLS, looked at before kazoo takes them.

kazoo (2.11) reads them at each attempt to connect, in a thread of its own. What is wrong with one would be told as a connection that broke,
or end that thread; and of a key that wants a password OpenSSL asks the terminal.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any

#: From the arguments of a kazoo client that are files to the options of the URL.
FILES = {"ca": "ca", "certfile": "cert", "keyfile": "key"}


class WrongFile(OSError):
    """A file of TLS can't be used. The message holds no path: behind a password with a raw ``&`` it may be a part of that."""


def check_files(options: Mapping[str, Any]) -> None:
    """Read them as kazoo will.

    Args:
        options: Arguments of a kazoo client.

    Raises:
        WrongFile: One of them is not there, may not be read, or is not what it is named as.
    """
    if not options.get("use_ssl"):
        return
    for argument, option in FILES.items():
        if options.get(argument):
            try:
                with open(options[argument], "rb"):
                    pass
            except (OSError, ValueError) as error:  # the latter: a NUL in its name
                raise WrongFile(f"the file of {option}= can't be read: {getattr(error, 'strerror', error)}") from error
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        if options.get("ca"):
            context.load_verify_locations(options["ca"])
    except (OSError, ValueError) as error:
        raise WrongFile(f"the file of ca= holds no certificates: {error}") from error
    try:
        if options.get("certfile"):
            context.load_cert_chain(options["certfile"], options["keyfile"], options.get("keyfile_password") or "")
    except (OSError, ValueError) as error:
        raise WrongFile(f"the files of cert= and key= don't fit together, or key_password= is not the key's: {error}") from error
