#include "fetcher/retry.h"

#include <curl/curl.h>

bool waste_retry_status(long status)
{
    return status == 408 || status == 425 || status == 429 || status == 500 || status == 502 ||
           status == 503 || status == 504;
}

bool waste_retry_curl(int code)
{
    switch (code) {
    case CURLE_URL_MALFORMAT:
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CERTPROBLEM:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_ISSUER_ERROR:
    case CURLE_SSL_PINNEDPUBKEYNOTMATCH:
    case CURLE_OUT_OF_MEMORY:
        return false;
    default:
        return true;
    }
}

double waste_retry_delay(const struct waste_retry *r, uint32_t failures, uint32_t random)
{
    double seconds = r->wait;

    for (uint32_t i = 1; i < failures && seconds < WASTE_RETRY_LONGEST; i++)
        seconds *= 2;
    if (seconds > WASTE_RETRY_LONGEST)
        seconds = WASTE_RETRY_LONGEST;
    return seconds * (0.5 + 0.5 * random / UINT32_MAX);
}
