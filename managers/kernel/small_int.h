/* Python's ints of few bits, read without a call. */

#ifndef KVHYBRID_SMALL_INT_H
#define KVHYBRID_SMALL_INT_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

#if PY_VERSION_HEX < 0x030B0000
#include <longintrepr.h>
#endif

/* Whether an object of exactly the type int has its value in one digit. Any int may be refused here. */
static inline int is_small_int(PyObject *number)
{
#if PY_VERSION_HEX >= 0x030C0000
    return PyUnstable_Long_IsCompact((PyLongObject *)number);
#else
    return Py_SIZE(number) == 1;
#endif
}

static inline int64_t small_int_value(PyObject *number)
{
#if PY_VERSION_HEX >= 0x030C0000
    return PyUnstable_Long_CompactValue((PyLongObject *)number);
#else
    return ((PyLongObject *)number)->ob_digit[0];
#endif
}

#endif
