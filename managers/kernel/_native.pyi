from kvhybrid.managers.kernel.plain import BlockArrays as BlockArrays
from kvhybrid.managers.kernel.plain import extend_keys as extend_keys
