/* What servers say: names, listings, headers, addresses; and when to ask again. */
#include "cm.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fetcher/address.h"
#include "fetcher/listing.h"
#include "fetcher/response.h"
#include "fetcher/retry.h"

static bool may_be_a_name(const char *name)
{
    return waste_listing_name_fault(name, strlen(name)) == NULL;
}

static void names_stay_below_the_directory(void **state)
{
    static const char *const good[] = {"a", "a.b", "a/b/c", "..a", "a..", ".hidden", "...", "a b"};
    static const char *const bad[] = {"",     ".",    "..",    "/a",     "a/../b",
                                      "a/..", "../a", "a//b",  "a/",     "a/./",
                                      "a\\b", "a\n",  "a\x7f", "x.part", "./a"};

    (void)state;
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++)
        assert_true(may_be_a_name(good[i]));
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_false(may_be_a_name(bad[i]));
    assert_non_null(waste_listing_name_fault("a\0b", 3));
    assert_false(may_be_a_name(WASTE_CATALOG_NAME));
}

static struct waste_response after(const char *line)
{
    struct waste_response r = {.linked_etag = ""};

    waste_response_reset(&r);
    waste_response_take(&r, line);
    return r;
}

static void ranges_are_read_or_not_there(void **state)
{
    static const char *const bad[] = {"bytes 5-4/10",
                                      "bytes 0-10/10",
                                      "bytes -1-4/10",
                                      "bytes 0-4",
                                      "bytes */10",
                                      "items 0-4/10",
                                      "bytes 0-4/x",
                                      "bytes 0-/10",
                                      "bytes 0-4/10 and",
                                      "",
                                      "bytes ",
                                      "bytes 0x1-4/10",
                                      "bytes 0-99999999999999999999/*"};
    char line[80];
    struct waste_response r = after("Content-Range: bytes 10-19/20");

    (void)state;
    assert_true(r.range_first == 10 && r.range_last == 19 && r.total == 20);
    r = after("content-range:bytes 0-0/*");
    assert_true(r.range_first == 0 && r.range_last == 0 && r.total == WASTE_SIZE_UNKNOWN);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        snprintf(line, sizeof(line), "Content-Range: %s", bad[i]);
        r = after(line);
        assert_true(r.range_first == WASTE_SIZE_UNKNOWN && r.total == WASTE_SIZE_UNKNOWN);
    }
}

static void lengths_are_numbers_or_unknown(void **state)
{
    (void)state;
    assert_true(after("Content-Length: 12").length == 12);
    assert_true(after("Content-Length: 12").framed);
    assert_true(after("Transfer-Encoding: chunked").framed);
    assert_true(after("Content-Length: -1").length == WASTE_SIZE_UNKNOWN);
    assert_true(after("Content-Length: 1 2").length == WASTE_SIZE_UNKNOWN);
    assert_true(after("Content-Length: 99999999999999999999").length == WASTE_SIZE_UNKNOWN);
    assert_false(after("Content-Length: x").framed);
    assert_string_equal(after("ETag:  \"abc\"").etag, "\"abc\"");
    assert_string_equal(after("ETagged: \"abc\"").etag, "");
}

static void origins_are_scheme_host_and_port(void **state)
{
    static const char hub[] = "https://hub.example";

    (void)state;
    assert_true(waste_address_same_origin("https://hub.example/x?y", hub));
    assert_true(waste_address_same_origin("https://HUB.example:443/", hub));
    assert_false(waste_address_same_origin("http://hub.example/", hub));
    assert_false(waste_address_same_origin("https://hub.example:444/", hub));
    assert_false(waste_address_same_origin("https://hub.example.org/", hub));
    assert_false(waste_address_same_origin("https://cdn.hub.example/", hub));
    assert_false(waste_address_same_origin("https://hub.example@evil.example/", hub));
    assert_false(waste_address_same_origin("nonsense", hub));
    assert_false(waste_address_same_origin("", hub));
    assert_true(waste_address_is_private("https://hub.example"));
    assert_true(waste_address_is_private("http://127.0.0.1:80"));
    assert_false(waste_address_is_private("http://hub.example"));
    assert_false(waste_address_is_private("http://127.evil.example"));
}

static void urls_are_shown_without_secrets(void **state)
{
    char *shown = waste_address_shown("https://user:pass@host.example/a?token=1#x");

    (void)state;
    assert_string_equal(shown, "https://host.example/a");
    free(shown);
}

static void urls_of_files_keep_the_query_and_escape_names(void **state)
{
    struct waste_address a;
    struct waste_error err;

    (void)state;
    assert_int_equal(waste_address_parse("https://host.example/dir/?sig=a%2Fb", &a, &err), 0);
    char *url = waste_address_file(&a, NULL, "x y/z?.json");
    assert_string_equal(url, "https://host.example/dir/x%20y/z%3F.json?sig=a%2Fb");
    free(url);
    waste_address_finish(&a);
}

/* Doubling from the first wait to a minute, each between half of it and all of it. */
static void pauses_double_and_are_spread(void **state)
{
    const struct waste_retry r = {.retries = 20, .wait = 1};
    double whole = 1;

    (void)state;
    for (uint32_t failures = 1; failures < 40; failures++, whole = fmin(60, whole * 2)) {
        assert_true(fabs(waste_retry_delay(&r, failures, UINT32_MAX) - whole) < 1e-6);
        assert_true(fabs(waste_retry_delay(&r, failures, 0) - whole / 2) < 1e-6);
        double middle = waste_retry_delay(&r, failures, UINT32_MAX / 2);
        assert_true(middle > 0.7 * whole && middle < 0.8 * whole);
    }
    assert_true(waste_retry_status(503) && waste_retry_status(429));
    assert_false(waste_retry_status(404) || waste_retry_status(401) || waste_retry_status(200));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_stay_below_the_directory),
        cmocka_unit_test(ranges_are_read_or_not_there),
        cmocka_unit_test(lengths_are_numbers_or_unknown),
        cmocka_unit_test(origins_are_scheme_host_and_port),
        cmocka_unit_test(urls_are_shown_without_secrets),
        cmocka_unit_test(urls_of_files_keep_the_query_and_escape_names),
        cmocka_unit_test(pauses_double_and_are_spread),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
