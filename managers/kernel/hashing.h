/* The chain of keys over a list of token ids. */

#ifndef KVHYBRID_HASHING_H
#define KVHYBRID_HASHING_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "hidden.h"

/* Call once, before any key is made. */
HIDDEN void prepare_hashing(void);

HIDDEN PyObject *extend_keys(PyObject *module, PyObject *args);

#endif
