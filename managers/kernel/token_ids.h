/* What is accepted as token ids. */

#ifndef KVHYBRID_TOKEN_IDS_H
#define KVHYBRID_TOKEN_IDS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "hidden.h"

HIDDEN PyObject *as_token_ids(PyObject *module, PyObject *tokens);

#endif
