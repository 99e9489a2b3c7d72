"""Extends the package of the same name that LightZero installs; in a checkout, both are importable side by side."""

from pkgutil import extend_path

__path__ = extend_path(__path__, __name__)
