/* When a failed request is worth another, and how long to wait before it. */
#ifndef WASTE_FETCHER_RETRY_H
#define WASTE_FETCHER_RETRY_H

#include <stdbool.h>
#include <stdint.h>

struct waste_retry {
    uint32_t retries; /* failures in a row that are borne */
    double wait;      /* seconds before the second attempt; doubles from there */
};

enum { WASTE_RETRY_LONGEST = 60, WASTE_RETRY_AFTER_LONGEST = 3600 };

bool waste_retry_status(long status);
bool waste_retry_curl(int code);

/*
 * Seconds to wait after `failures` (1 or more) in a row: wait x 2^(failures - 1), at most
 * WASTE_RETRY_LONGEST, times a random factor of 0.5 to 1 (so that many clients that failed at once
 * do not come back at once). `random` is any 32 bits.
 */
double waste_retry_delay(const struct waste_retry *r, uint32_t failures, uint32_t random);

#endif
