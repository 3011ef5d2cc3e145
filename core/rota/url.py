# SPDX-License-Identifier: MIT
"""Store URLs: strict, and never printed with a secret in them.

The core takes the query apart and its own options out; everything else (several hosts, ports, credentials, paths) goes to the backend
as it was written, since only the driver knows what its hosts look like.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping

from .errors import ConfigurationError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NamedTuple
else:
    from ._value import NamedTuple

#: Options that every backend takes, with a line of help each.
COMMON_OPTIONS: Mapping[str, str] = {
    "prefix": "put before every name, as in prefix/name",
    "site": "the label of the site that runs, for people (default: ROTA_SITE)",
}

#: From how many options on a message names but a few of them.
MANY, FEW = 16, 6

_HEX = frozenset("0123456789abcdefABCDEF")
#: Words in the name of an option whose value is a secret.
_SECRET = ("pass", "pwd", "secret", "token", "key", "auth", "cred", "user")


class Url(NamedTuple):
    """A store's URL, taken apart at its scheme and query only.

    Attributes:
        scheme: In lower case; selects the backend.
        rest: What stands between ``scheme://`` and the query, as written. May hold secrets.
        options: The backend's own options, decoded, in the order written. May hold secrets.
        prefix: The common option ``prefix``.
        site: The common option ``site``.
    """

    scheme: str
    rest: str
    options: Mapping[str, str]
    prefix: str = ""
    site: str = ""

    def __repr__(self) -> str:
        return f"Url({self.safe!r})"

    @property
    def safe(self) -> str:
        """The URL for messages: no user, no password, no option's value."""
        return self.shown()

    def shown(self, plain: Container[str] = (), user: str = "") -> str:
        """Return the URL for a message that somebody is to go by.

        Args:
            plain: The options whose values are no secrets; those behind a secret's stay hidden, since they may be the rest of it.
            user: What to write in the place of user and password, also where there are none; empty: they are hidden.
        """
        _, at, after = self.rest.rpartition("@")
        before = f"{user}@" if user else "***@" if at else ""
        query = "&".join(
            f"{shown}={_encoded(value) if shown == name and name in plain else '***'}"
            for shown, (name, value) in zip(_shown_names(self.options), self.options.items(), strict=True)
        )
        return f"{self.scheme}://{before}{after}{'?' + query if query else ''}"


def parse(text: str) -> Url:
    """Take a URL apart.

    Raises:
        ConfigurationError: Not text, no scheme, a control character, a fragment, a ``%`` that is no escape, an option without a value or
            given twice, a bad ``prefix`` or ``site``. The message never quotes what may be a secret.
    """
    if not isinstance(text, str) or not text:
        raise ConfigurationError(
            f"a store's URL is text like sqlite:///var/lib/rota.db, not {type(text).__name__ if text != '' else 'empty'}"
        )
    if (around := _around(text)) is not None:
        raise ConfigurationError(f"the store's URL {around}")
    scheme, colon, rest = text.partition("://")
    if not colon or not scheme or not scheme[0].isalpha() or not all(c.isascii() and (c.isalnum() or c in "+-.") for c in scheme):
        # nothing of it is quoted: without a scheme we can't tell which part is a secret
        raise ConfigurationError("a store's URL starts with a scheme, as in sqlite:///var/lib/rota.db or memory://; this one has none")
    scheme = scheme.lower()
    if any(ord(c) < 32 or ord(c) == 127 or c.isspace() for c in rest) or any("\ud800" <= c <= "\udfff" for c in rest):
        raise ConfigurationError(f"the {scheme}:// URL holds white space or a control character: percent-encode it")
    if "#" in rest:
        raise ConfigurationError(f"the {scheme}:// URL holds '#': in a password or a path, percent-encode it as %23")
    if "%" in rest and not all(len(part) >= 2 and set(part[:2]) <= _HEX for part in rest.split("%")[1:]):
        raise ConfigurationError(f"the {scheme}:// URL holds a '%' that starts no escape: percent-encode it as %25")
    body, _, query = rest.partition("?")
    options = _options(scheme, query)
    prefix = options.pop("prefix", "")
    site = options.pop("site", "")
    if prefix:
        check_text(prefix, "prefix", 64)
    if site:
        check_text(site, "site", 64)
    return Url(scheme, body, options, prefix, site)


def _around(text: str) -> str | None:
    """Return what is before or behind a URL that is no part of it, and what to do, as the end of a sentence; None where nothing is."""
    bare = text.strip()
    if not bare:
        return "is nothing but white space"
    if bare != text:
        if text.endswith(("\n", "\r")):
            return (
                "ends with a line break: leave that out. A file that was written by echo has one, and so has a Secret that was made of it:"
                " use printf, or --from-literal"
            )
        return f"{'begins' if not text.startswith(bare) else 'ends'} with white space: leave that out"
    if text[0] in "'\"":
        return "begins with a quotation mark: leave the quotes out; an env file, unlike a shell, keeps them"
    return None


def _options(scheme: str, query: str) -> dict[str, str]:
    if not query:
        return {}
    if "@" in query:
        # most likely a '?' inside a password: nothing of what follows may be quoted
        raise ConfigurationError(
            f"the {scheme}:// URL holds '@' behind a '?': percent-encode '?' as %3F in a password, '@' as %40 in an option"
        )
    from urllib.parse import unquote  # a few ms of import that most URLs don't need

    options: dict[str, str] = {}
    for part in query.split("&"):
        name, equals, value = part.partition("=")
        if not name or not equals:
            raise ConfigurationError(f"the {scheme}:// URL has an option that is not written name=value")
        # not errors="strict": its UnicodeDecodeError would hold the value, and stay behind ours as its context
        name, value = unquote(name, errors="surrogateescape"), unquote(value, errors="surrogateescape")
        if any("\udc80" <= letter <= "\udcff" for letter in name + value):
            raise ConfigurationError(f"the {scheme}:// URL has an option whose escapes are not UTF-8")
        if name in options:
            raise ConfigurationError(f"the {scheme}:// URL gives the option {_shown_names([*options, name])[-1]!r} twice")
        options[name] = value
    return options


def _shown_names(names: Iterable[str]) -> list[str]:
    """Return the options' names for messages: what follows a secret's option may be the rest of a secret with a raw ``&`` in it."""
    shown, secret = [], False
    for name in names:
        shown.append("***" if secret else name)
        secret = secret or any(word in name.lower() for word in _SECRET)
    return shown


def _encoded(value: str) -> str:
    from urllib.parse import quote

    return quote(value, safe="/:,")


def check_options(url: Url, known: Mapping[str, str]) -> None:
    """Refuse an option that neither the backend nor the core knows."""
    for name, shown in zip(url.options, _shown_names(url.options), strict=True):
        if name not in known:
            allowed = [*known, *COMMON_OPTIONS]
            some = ", ".join(sorted(allowed))
            if len(allowed) > MANY:  # the backend's own come first, its driver's behind them
                some = f"{', '.join([*COMMON_OPTIONS, *list(known)[:FEW]])}, and {len(known) - FEW} more"
            if shown != name:
                raise ConfigurationError(
                    f"{url.scheme}:// has no option like one behind a password or key: percent-encode '&' as %26 in its value;"
                    f" it knows {some}"
                )
            raise ConfigurationError(f"{url.scheme}:// has no option {name!r}{did_you_mean(name, allowed)} (it knows {some})")


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return ``: did you mean 'x'?`` when a known word is near, else an empty text."""
    import difflib

    near = difflib.get_close_matches(word, list(known), n=1)
    return f": did you mean {near[0]!r}?" if near else ""


def check_userinfo(url: Url) -> None:
    """Refuse a raw ``@`` or ``/`` in user and password: a part of the password would be taken for a host or a path, and be shown."""
    userinfo = url.rest.rpartition("@")[0]
    if "@" in userinfo or "/" in userinfo:
        raise ConfigurationError(
            f"the {url.scheme}:// URL has more than one '@', or '/' before '@': percent-encode them, in a password too, as %40 and %2F"
        )


def check_host(host: str, scheme: str) -> None:
    """Refuse a host's name that resolvers refuse with errors of their own; the message holds none of it: it may be part of a password."""
    try:
        labels = (host if host.isascii() else host.encode("idna").decode()).removesuffix(".").split(".")
    except UnicodeError:
        labels = [""]
    if not all(0 < len(label) < 64 for label in labels):
        raise ConfigurationError(f"the {scheme}:// URL has a host of which a part between dots is empty, or longer than 63 characters")


def check_text(text: str, what: str, limit: int) -> str:
    """Check a name or label: text, not empty, no control character, no surrounding white space, at most ``limit`` bytes of UTF-8."""
    if not isinstance(text, str):
        raise ConfigurationError(f"{what} is text, not {type(text).__name__}")
    if not text:
        raise ConfigurationError(f"{what} is empty")
    if not text.isprintable() and any(ord(c) < 32 or 127 <= ord(c) < 160 for c in text):  # the former alone is quick, and too strict
        raise ConfigurationError(f"{what} {_shown(text)} holds a control character")
    if text != text.strip():
        raise ConfigurationError(f"{what} {_shown(text)} begins or ends with white space")
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise ConfigurationError(f"{what} {_shown(text)} is not valid Unicode text") from None
    if size > limit:
        raise ConfigurationError(f"{what} {_shown(text)} has {size} bytes; at most {limit} are allowed")
    return text


def _shown(text: str) -> str:
    return ascii(text if len(text) <= 40 else text[:37] + "...")
