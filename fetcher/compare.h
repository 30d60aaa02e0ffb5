/*
 * A container against the release it was made of: the relative error |W - W'| / |W| (Frobenius) of
 * every matrix and vector, W being the release's, W' what the container decodes to. The decoder is
 * written from the format's description, not shared with the engine or the converter.
 */
#ifndef WASTE_FETCHER_COMPARE_H
#define WASTE_FETCHER_COMPARE_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "fetcher/inspect.h"

/* Of trunk tensors by format, of experts by matrix. */
enum waste_compare_kind {
    WASTE_COMPARE_GATE,
    WASTE_COMPARE_UP,
    WASTE_COMPARE_DOWN,
    WASTE_COMPARE_F32,
    WASTE_COMPARE_Q8G,
    WASTE_COMPARE_Q4G,
    WASTE_COMPARE_Q3G,
    WASTE_COMPARE_KINDS,
};
extern const char *const waste_compare_kind_names[WASTE_COMPARE_KINDS];

struct waste_compared {
    uint32_t entry; /* of the trunk index; of an expert: */
    int32_t layer, expert;
    uint8_t kind;       /* enum waste_compare_kind */
    bool done;          /* false: could not be compared, which is among the damages */
    double error, norm; /* squared */
    const struct waste_release_tensor *source;
};

struct waste_comparison {
    struct waste_compared *matrix;
    uint64_t count;
    uint64_t bytes;     /* of the container and the release */
    bool other_release; /* most of what the container keeps exactly, or most of all, differs */
    double seconds;
};

/*
 * All that the inspection looked at (its layers) against the release in directory `source`; what is
 * not what it should be is added to the inspection's damages: tensors that only one side has, other
 * shapes, F32 tensors that differ at all, errors over 0.5. Of many the worst are shown. 0, or -1
 * with the reason printed.
 */
int waste_compare(struct waste_comparison *c, struct waste_inspection *i, const char *source);
void waste_comparison_finish(struct waste_comparison *c);

double waste_compared_error(double error, double norm);
/* The release's name of a matrix (of an MXFP4 pair: X.weight). */
void waste_compared_name(const struct waste_inspection *i, const struct waste_compared *m,
                         char *out, size_t bytes);

/* The summary: a line a layer, a line a kind, the worst. */
void waste_comparison_print(const struct waste_comparison *c, const struct waste_inspection *i);
json_t *waste_comparison_json(const struct waste_comparison *c, const struct waste_inspection *i);

#endif
