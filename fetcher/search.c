#include "fetcher/search.h"

#include <stdlib.h>
#include <string.h>

#include "compute/kernels.h"
#include "fetcher/io.h"
#include "fetcher/search_int.h"

const struct waste_search *waste_search_level(const char *level)
{
    static const struct waste_search *const built[] = {
        &waste_search_c,
#if defined(__x86_64__)
        &waste_search_avx2,
        &waste_search_avx512,
#elif defined(__aarch64__)
        &waste_search_neon,
#endif
    };
    if (!strcmp(level, "vnni") || !strcmp(level, "zen4")) /* have nothing more for this */
        level = "avx512";
    for (size_t i = 0; i < sizeof(built) / sizeof(built[0]); i++)
        if (!strcmp(built[i]->level, level))
            return built[i];
    return NULL;
}

int waste_search_init(struct waste_search *search)
{
    struct waste_kernels k;
    const char *limit = getenv("WASTE_CPU");
    if (!waste_kernels_init(&k, limit))
        return waste_fetch_fail("WASTE_CPU=%s: no such level on this machine", limit);
    *search = *waste_search_level(k.level);
    return 0;
}
