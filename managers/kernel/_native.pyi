from kvhybrid.managers.kernel.plain import BlockArrays as BlockArrays
from kvhybrid.managers.kernel.plain import as_token_ids as as_token_ids
from kvhybrid.managers.kernel.plain import extend_keys as extend_keys
from kvhybrid.managers.kernel.plain import mark_all as mark_all
from kvhybrid.managers.kernel.plain import mark_each as mark_each
from kvhybrid.managers.kernel.plain import merge_equal_rows as merge_equal_rows
from kvhybrid.managers.kernel.plain import put_span as put_span
from kvhybrid.managers.kernel.plain import stretches as stretches
