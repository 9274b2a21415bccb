#include "passes.h"

#include "small_int.h"

static int fits_64_bits(PyObject *number)
{
    int overflow;
    PyLong_AsLongLongAndOverflow(number, &overflow);
    return !overflow;
}

static int is_token_id(PyObject *item)
{
    return PyLong_CheckExact(item) && (is_small_int(item) || fits_64_bits(item));
}

/* One token id as an int, a new reference. This can run code of the item's class. */
static PyObject *to_token_id(PyObject *item, Py_ssize_t place)
{
    PyObject *number = PyBool_Check(item) ? NULL : PyNumber_Index(item);
    if (!number) {
        if (!PyErr_Occurred() || PyErr_ExceptionMatches(PyExc_TypeError))
            PyErr_Format(PyExc_TypeError, "token id %zd must be an integer, found %R", place, item);
        return NULL;
    }
    if (fits_64_bits(number))
        return number;
    PyErr_Format(PyExc_ValueError, "token id %zd must fit in 64 bits, found %R", place, number);
    Py_DECREF(number);
    return NULL;
}

PyObject *as_token_ids(PyObject *module, PyObject *tokens)
{
    PyObject *ids = PySequence_List(tokens); /* nothing else refers to it, so no code run below can change it */
    for (Py_ssize_t i = 0; ids && i < PyList_GET_SIZE(ids); i++) {
        PyObject *item = PyList_GET_ITEM(ids, i);
        if (is_token_id(item))
            continue;
        PyObject *id = to_token_id(item, i);
        if (!id || PyList_SetItem(ids, i, id) < 0)
            Py_CLEAR(ids);
    }
    return ids;
}
