/* The functions and methods of the extension module, each the native form of its namesake in plain.py. */

#ifndef KVHYBRID_PASSES_H
#define KVHYBRID_PASSES_H

#include "arrays.h"
#include "hidden.h"

#define METHOD(name) HIDDEN PyObject *name(BlockArrays *self, PyObject *const *args, Py_ssize_t count)
#define FUNCTION(name) HIDDEN PyObject *name(PyObject *module, PyObject *const *args, Py_ssize_t count)

/* holding.c */
METHOD(allocate);
METHOD(count_free);
METHOD(hold);
METHOD(release);

/* keys.c */
METHOD(register_rows);
METHOD(forget);
METHOD(are_keyed_under);

/* look_up.c */
METHOD(first_missing);
METHOD(last_missing);
METHOD(last_present);
METHOD(last_run);
METHOD(gather);

/* spans.c */
FUNCTION(put_span);

/* watching.c */
FUNCTION(stretches);
FUNCTION(merge_equal_rows);
FUNCTION(mark_all);
FUNCTION(mark_each);

/* hashing.c */
HIDDEN PyObject *extend_keys(PyObject *module, PyObject *args);
HIDDEN void prepare_hashing(void); /* Call once, before any key is made. */

/* token_ids.c */
HIDDEN PyObject *as_token_ids(PyObject *module, PyObject *tokens);

#undef METHOD
#undef FUNCTION

#endif
