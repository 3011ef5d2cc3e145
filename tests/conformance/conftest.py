# SPDX-License-Identifier: MIT
"""The plug-in of the suite, loaded as any author of a backend loads it."""

pytest_plugins = ["rota.testing.plugin"]
