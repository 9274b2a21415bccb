"""The benchmark measures the kvhybrid that is installed, as the other recipes and the ``kvhybrid`` command do.

``python -m`` looks in the working directory first, where the sources of a clone would hide an installed wheel.
"""

import os
import sys

_TOP = os.path.realpath(os.path.join(os.path.dirname(__file__), "..", ".."))
sys.path[:] = [*(place for place in sys.path if os.path.realpath(place) != _TOP), _TOP]
