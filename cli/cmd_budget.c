/* waste-run budget: another memory budget for a running pipeline. */
#include <inttypes.h>
#include <stdio.h>

#include "cli/attach.h"
#include "cli/cmd.h"
#include "cli/engine.h"
#include "cli/output.h"
#include "options/units.h"

int waste_cmd_budget(const struct waste_args *args)
{
    struct waste_attached a;
    struct waste_error err;
    uint64_t bytes;
    char command[64], size[24];

    if (waste_plan_parse_budget(args->line.positional[0], &bytes) != 0)
        return waste_fail(2, "budget '%.80s' is no size (for example 46G, 512M, 1.5GiB, max)",
                          args->line.positional[0]);
    int rc = waste_attach_open(args->pid, &a, &err);
    if (rc != 0)
        return waste_fail(rc, "%s", err.text);
    snprintf(command, sizeof(command), "budget %" PRIu64, bytes);
    rc = waste_attach_command(&a, command, &err);
    if (rc == 0) {
        /* relaxed: written before the answer was sent */
        uint32_t slots = atomic_load_explicit(&a.shm.control->slots_budget, memory_order_relaxed);
        uint64_t total = atomic_load_explicit(&a.shm.control->budget_bytes, memory_order_relaxed);
        if (args->json)
            rc = waste_output_print_json(json_pack("{s:I, s:I}", "budget_bytes", (json_int_t)total,
                                                   "slots", (json_int_t)slots));
        else if (!args->quiet)
            printf("%s in all, %u slots for experts%s\n",
                   waste_units_format_size(total, size, sizeof(size)), slots,
                   slots == a.shm.control->slot_count ? ", all there is room for" : "");
        waste_attach_close(&a);
        return rc;
    }
    waste_attach_close(&a);
    return waste_fail(rc, "%s", err.text);
}
