/* Symbols that files of the kernel share are not exported from the extension module. */

#ifndef KVHYBRID_HIDDEN_H
#define KVHYBRID_HIDDEN_H

#if defined(__GNUC__) && !defined(_WIN32)
#define HIDDEN __attribute__((visibility("hidden")))
#else
#define HIDDEN
#endif

#endif
