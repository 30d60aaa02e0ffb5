/*
 * What a checkpoint consists of, as its server tells.
 *
 * A hub has a listing of every file with its size and digest, and names the commit. A plain server
 * may have SHA256SUMS (as sha256sum writes it) beside the files, which lists them. If it has none,
 * the shards are those of model.safetensors.index.json (or model.safetensors alone), and the small
 * files that checkpoints have are asked for by their usual names: what is not there is left out.
 * Pages that list a directory are not read.
 */
#ifndef WASTE_FETCHER_REPO_H
#define WASTE_FETCHER_REPO_H

#include "fetcher/address.h"
#include "fetcher/catalog.h"
#include "fetcher/http.h"
#include "options/options.h"

struct waste_repo {
    struct waste_http *http;
    const struct waste_address *address;
    const char *revision; /* branch, tag or commit; NULL: main */
    const _Atomic bool *stop;
};

/* Fills the empty catalog. 0, -ECANCELED or another -errno, with err. */
int waste_repo_list(const struct waste_repo *r, struct waste_catalog *l, struct waste_error *err);

/* Asks for the sizes of wanted files that have none (HEAD); those it does not get stay unknown.
 * 0, -ENOENT (a file that is not optional is not there) or -ECANCELED, with err. */
int waste_repo_ask_sizes(const struct waste_repo *r, struct waste_catalog *l,
                         struct waste_error *err);

/*
 * Marks what is wanted: with `include`, the files that match one of its globs, else the shards and
 * all other files but hidden ones and weights in other formats; and none that matches one of
 * `exclude`. A glob's * goes past slashes. 0, or -ENOENT with err: nothing is.
 */
int waste_repo_select(struct waste_catalog *l, const struct waste_strings *include,
                      const struct waste_strings *exclude, struct waste_error *err);

#endif
