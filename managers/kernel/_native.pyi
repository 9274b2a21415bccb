from kvhybrid.managers.kernel.plain import BlockArrays as BlockArrays
