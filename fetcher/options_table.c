/* The commands and the options. */
#include "fetcher/jobs.h"
#include "fetcher/options.h"
#include "shm/model.h"

#define BIT(id) (UINT32_C(1) << WASTE_FETCH_##id)
#define ANY UINT32_MAX

#define FIELD(name) offsetof(struct waste_fetch_args, name)

static const struct waste_option option_table[] = {
    {"--revision", "NAME", "branch, tag or commit of a hub; default: as recorded, at first main",
     WASTE_OPT_STRING, FIELD(revision), 0, 0, BIT(GET) | BIT(CONVERT)},
    {"--include", "GLOB", "only files that match; may be given again", WASTE_OPT_STRINGS,
     FIELD(include), 0, 0, BIT(GET)},
    {"--exclude", "GLOB", "no files that match; may be given again", WASTE_OPT_STRINGS,
     FIELD(exclude), 0, 0, BIT(GET)},
    {"--jobs", "N", "files at once; default 8", WASTE_OPT_U32, FIELD(jobs), 1, 64,
     BIT(GET) | BIT(CONVERT)},
    {"--retries", "N", "failures in a row that a file may have; default 8", WASTE_OPT_U32,
     FIELD(retries), 0, 1000, BIT(GET) | BIT(CONVERT)},
    {"--retry-wait", "F", "seconds before the second attempt, doubling up to 60; default 1",
     WASTE_OPT_FLOAT, FIELD(retry_wait), 0, 60, BIT(GET) | BIT(CONVERT)},
    {"--stall", "N", "seconds below 1 KiB/s after which a connection is given up; default 30",
     WASTE_OPT_U32, FIELD(stall_seconds), 1, 3600, BIT(GET) | BIT(CONVERT)},
    {"--dry-run", NULL, "say what would be fetched, and whether there is room; fetch nothing",
     WASTE_OPT_FLAG, FIELD(dry_run), 0, 0, BIT(GET)},
    {"--check", NULL, "read what is there and compare, fetch nothing", WASTE_OPT_FLAG, FIELD(check),
     0, 0, BIT(GET)},
    {"--experts", "vq3r|vq2r|vq4p", "format of the experts: 3, 2 or 3 bits a weight; default vq3r",
     WASTE_OPT_CHOICE, FIELD(expert_fmt), 1, 0, BIT(CONVERT)},
    {"--effort", "0|1|2|3", "what is spent on the experts' codes; default 1", WASTE_OPT_CHOICE,
     FIELD(effort), 0, 0, BIT(CONVERT)},
    {"--layers", "A-B", "only these layers; the first one's part has all that is in no layer",
     WASTE_OPT_STRING, FIELD(layer_range), 0, 0, BIT(CONVERT)},
    {"--reclaim", "off|dry|on",
     "delete shards of SRC once all of them is safely in OUT; dry: say which; default off",
     WASTE_OPT_CHOICE, FIELD(reclaim), 0, 0, BIT(CONVERT)},
    {"--dry-run", NULL, "say what would be written, and whether there is room; write nothing",
     WASTE_OPT_FLAG, FIELD(dry_run), 0, 0, BIT(CONVERT)},
    {"--shape", "NAME", "one of --list, or the path of a release's config.json", WASTE_OPT_STRING,
     FIELD(shape), 0, 0, BIT(SYNTH)},
    {"--list", NULL, "the shapes that have a name, and their sizes", WASTE_OPT_FLAG, FIELD(list), 0,
     0, BIT(SYNTH)},
    {"--seed", "N", "what the random numbers begin with; default 1", WASTE_OPT_U64, FIELD(seed), 0,
     0x1p63 - 1, BIT(SYNTH)},
    {"--experts", "vq3r|vq2r|vq4p", "format of the experts; default: the shape's, else vq3r",
     WASTE_OPT_CHOICE, FIELD(expert_fmt), 1, 0, BIT(SYNTH)},
    {"--trunk-bits", "3|4|8", "bits of trunk matrices; default 4", WASTE_OPT_CHOICE,
     FIELD(trunk_bits), 1, 0, BIT(CONVERT)},
    {"--trunk-bits", "3|4|8", "bits of trunk matrices; default: the shape's, else 4",
     WASTE_OPT_CHOICE, FIELD(trunk_bits), 1, 0, BIT(SYNTH)},
    {"--layers", "N", "only the first N layers", WASTE_OPT_U32, FIELD(layers), 1, WASTE_MAX_LAYERS,
     BIT(SYNTH)},
    {"--layers", "A-B", "only these layers' experts and what of the trunk lies with theirs",
     WASTE_OPT_STRING, FIELD(layer_range), 0, 0, BIT(VERIFY)},
    {"--checkpoint", NULL, "a release: shards with their index, config.json, tokenizer files",
     WASTE_OPT_FLAG, FIELD(checkpoint), 0, 0, BIT(SYNTH)},
    {"--dtype", "bf16|f16|f32|mxfp4",
     "of a release's weights (mxfp4: the experts, the rest bf16); default: mxfp4 for K3's family, "
     "else bf16",
     WASTE_OPT_CHOICE, FIELD(dtype), 1, 0, BIT(SYNTH)},
    {"--shard-size", "SIZE", "bytes of a release's shard, at most; default 5000000000",
     WASTE_OPT_SIZE, FIELD(shard_bytes), 4096, 0x1p50, BIT(SYNTH)},
    {"--threads", "N", "default: one a CPU", WASTE_OPT_U32, FIELD(threads), 1, WASTE_JOBS_THREADS,
     BIT(SYNTH) | BIT(CONVERT) | BIT(MERGE)},
    {"--threads", "N", "default: one a CPU, but at least 8, since they wait for the drive",
     WASTE_OPT_U32, FIELD(threads), 1, WASTE_JOBS_THREADS, BIT(VERIFY) | BIT(SEAL)},
    {"--model", "DIR",
     "a container: its record size, and the drive in tokens a second; default: DIR, if it is one",
     WASTE_OPT_STRING, FIELD(model), 0, 0, BIT(DISKBENCH)},
    {"--size", "SIZE", "bytes a read, a multiple of 4096; default: the model's records, else 4 MiB",
     WASTE_OPT_SIZE, FIELD(read_bytes), 4096, 64 << 20, BIT(DISKBENCH)},
    {"--seconds", "F", "how long each depth is measured; default 0.5", WASTE_OPT_FLOAT,
     FIELD(seconds), 0.001, 3600, BIT(DISKBENCH)},
    {"--json", NULL, "one JSON object on stdout", WASTE_OPT_FLAG, FIELD(json), 0, 0, ANY},
    {"--against", "SRC", "the release it was made of: the relative error of every matrix",
     WASTE_OPT_STRING, FIELD(against), 0, 0, BIT(VERIFY)},
    {"--move", NULL, "move the experts' files out of the parts, which takes no time and no room",
     WASTE_OPT_FLAG, FIELD(move), 0, 0, BIT(MERGE)},
    {"--force", NULL, "replace an integrity.json that says something else", WASTE_OPT_FLAG,
     FIELD(force), 0, 0, BIT(SEAL)},
    {"-q", NULL, "no progress, no summary; long: --quiet", WASTE_OPT_FLAG, FIELD(quiet), 0, 0,
     BIT(GET) | BIT(DISKBENCH) | BIT(CONVERT) | BIT(SYNTH) | BIT(MERGE) | BIT(VERIFY) | BIT(SEAL)},
    {"--quiet", NULL, NULL, WASTE_OPT_FLAG, FIELD(quiet), 0, 0,
     BIT(GET) | BIT(DISKBENCH) | BIT(CONVERT) | BIT(SYNTH) | BIT(MERGE) | BIT(VERIFY) | BIT(SEAL)},
    {"--help", NULL, "this text", WASTE_OPT_FLAG, FIELD(line.help), 0, 0, ANY},
    {"-h", NULL, NULL, WASTE_OPT_FLAG, FIELD(line.help), 0, 0, ANY},
    {"--version", NULL, "the version", WASTE_OPT_FLAG, FIELD(line.version), 0, 0, ANY},
};
_Static_assert(sizeof(option_table) / sizeof(option_table[0]) <= 64,
               "options given are a bit mask");

static const struct waste_command_info command_table[WASTE_FETCH_COMMAND_COUNT] = {
#define WASTE_X(id, word, args, few, many, text)                                                   \
    {.name = word, .positionals = args, .summary = text, .least = few, .most = many},
    WASTE_FETCH_COMMANDS(WASTE_X)
#undef WASTE_X
};

static const struct waste_command_text command_texts[WASTE_FETCH_COMMAND_COUNT] = {
    [WASTE_FETCH_GET] =
        {.about =
             "SRC is OWNER/NAME on a hub, or the URL of a directory. Of a hub, its listing says "
             "what\n"
             "there is, and the commit is recorded: later runs stay at it. Beside a URL, "
             "SHA256SUMS "
             "is\n"
             "the listing if there is one; else the shards are those of the index, and small files "
             "are\n"
             "asked for by their usual names. Shards and small files are fetched, hidden files "
             "and\n"
             "weights in other formats are not, unless --include names them.\n"
             "The same command goes on after anything that ended it. Sizes and sums are checked "
             "before\n"
             "a file counts as done; a file that is done costs no request. --check reads "
             "everything\n"
             "again; it needs no network once a run has begun.\n",
         .examples = "  waste-fetch get moonshotai/Kimi-Linear-48B-A3B-Instruct kimi-linear\n"
                     "  waste-fetch get moonshotai/Kimi-K3 k3 --jobs 16 --dry-run\n"
                     "  waste-fetch get https://example.org/models/some/ some --exclude '*.md'\n"
                     "  waste-fetch get moonshotai/Kimi-K3 k3 --check\n"},
    [WASTE_FETCH_CONVERT] =
        {.about =
             "Makes a container in the new directory OUT of a release: shards in safetensors "
             "(bf16,\n"
             "f16, f32, MXFP4 pairs), config.json, tokenizer files. SRC is a directory, or as get "
             "takes\n"
             "it: then shards come to OUT/.staging when they are needed and go when they are used "
             "up,\n"
             "so that room is needed for the container and a few shards. It goes layer by layer; "
             "the\n"
             "same command again goes on where a broken run ended, at the same commit. Until all "
             "layers\n"
             "are there the manifest says that the container is partial. What is in the container\n"
             "depends on SRC, the formats and the effort, not on the machine, the threads or\n"
             "interruptions.\n",
         .examples = "  waste-fetch convert Kimi-Linear-48B kimi-linear.waste\n"
                     "  waste-fetch convert --reclaim on --effort 2 Kimi-K3 kimi-k3.waste\n"
                     "  waste-fetch convert moonshotai/Kimi-K3 kimi-k3.waste\n"
                     "  waste-fetch convert --layers 24-46 Kimi-K3 part2.waste\n"},
    [WASTE_FETCH_SYNTH] =
        {.about = "Writes a container with random centred weights to the new directory OUT, or a "
                  "release\n"
                  "(safetensors) as convert reads it. What it holds depends on the shape, the "
                  "formats and\n"
                  "the seed, not on the machine or the threads.\n"
                  "A directory with other content is refused; one that a broken run of the same "
                  "command\n"
                  "left is completed.\n",
         .examples = "  waste-fetch synth --list\n"
                     "  waste-fetch synth --shape kimi-linear-48b --layers 8 some.waste\n"
                     "  waste-fetch synth --shape config.json --experts vq2r --seed 7 other.waste\n"
                     "  waste-fetch synth --checkpoint --shape tiny-k3 --dtype bf16 release\n"},
    [WASTE_FETCH_MERGE] =
        {.about =
             "Joins containers that convert --layers made of one release with the same options, on "
             "as\n"
             "many machines as one likes, to the whole one in the new directory OUT: the same "
             "bytes "
             "as\n"
             "one run of convert gives. Parts that do not belong together, lack a layer or differ "
             "where\n"
             "they overlap are refused. The same command again goes on where a broken run ended; "
             "with\n"
             "--move the parts are used up, what is left of them may be deleted afterwards.\n",
         .examples = "  waste-fetch merge kimi-k3.waste part1.waste part2.waste part3.waste\n"
                     "  waste-fetch merge --move kimi-k3.waste parts/*\n"},
    [WASTE_FETCH_VERIFY] =
        {.about =
             "Looks at all of MODEL with all cores, past the page cache: the sizes of its files, "
             "header,\n"
             "crc32, scales and padding of every expert record, every number of the trunk and the\n"
             "codebooks, every piece that integrity.json has a checksum of. Each damage is a line "
             "with\n"
             "file, layer, expert and offset. With --against, every matrix is also compared with "
             "the\n"
             "release's: its relative error, by layer and kind, the worst ones by name (--json: "
             "all).\n"
             "Another release than the one it was made of is said once, with the worst of what "
             "differs.\n"
             "Exit code 0: whole; 1: damaged; 2: cannot say.\n",
         .examples = "  waste-fetch verify models/demo.waste\n"
                     "  waste-fetch verify kimi-k3.waste --against Kimi-K3 --layers 0-9\n"
                     "  waste-fetch verify --json models/demo.waste\n"},
    [WASTE_FETCH_SEAL] =
        {.about = "Writes MODEL/integrity.json: the size of every file and checksums of "
                  "all that has none of\n"
                  "its own, so that waste-run and verify notice when a byte changes. A "
                  "damaged container is\n"
                  "refused.\n",
         .examples = "  waste-fetch seal models/demo.waste\n"},
    [WASTE_FETCH_DISKBENCH] = {.about = "Reads the files of DIR past the page cache (O_DIRECT) at "
                                        "random places, 1 to 32 reads\n"
                                        "at once. If there are none large enough, it makes one of "
                                        "up to 1 GiB and removes it.\n",
                               .examples =
                                   "  waste-fetch diskbench models/demo.waste\n"
                                   "  waste-fetch diskbench /data --size 8M --seconds 2 --json\n"},
};

uint32_t waste_fetch_expert_fmt(const struct waste_fetch_args *args, uint32_t otherwise)
{
    static const uint32_t formats[] = {WASTE_FMT_VQ3R, WASTE_FMT_VQ2R, WASTE_FMT_VQ4P};

    return args->expert_fmt ? formats[args->expert_fmt - 1] : otherwise;
}

uint32_t waste_fetch_trunk_bits(const struct waste_fetch_args *args, uint32_t otherwise)
{
    static const uint32_t bits[] = {3, 4, 8};

    return args->trunk_bits ? bits[args->trunk_bits - 1] : otherwise;
}

int waste_fetch_args_parse(struct waste_fetch_args *args, int argc, char **argv)
{
    *args = (struct waste_fetch_args){.seed = 1,
                                      .seconds = 0.5,
                                      .effort = 1,
                                      .jobs = 8,
                                      .retries = 8,
                                      .retry_wait = 1,
                                      .stall_seconds = 30};
    return waste_line_parse(&waste_fetch_program, args, argc, argv, stderr);
}

const struct waste_program waste_fetch_program = {
    .name = "waste-fetch",
    .summary = "makes the containers that waste-run runs",
    .synopsis = "COMMAND [arguments] [options]\n",
    .notes = "HF_TOKEN is the token for the hub, HF_ENDPOINT another hub.\n"
             "'waste-fetch COMMAND --help' shows one command with its options and examples;\n"
             "'waste-fetch --version' the version.\n",
    .examples = "  waste-fetch get moonshotai/Kimi-Linear-48B-A3B-Instruct kimi-linear\n"
                "  waste-fetch convert kimi-linear kimi-linear.waste\n"
                "  waste-fetch convert moonshotai/Kimi-K3 kimi-k3.waste\n"
                "  waste-fetch merge kimi-k3.waste part1.waste part2.waste\n"
                "  waste-fetch synth --shape kimi-linear-48b --layers 8 some.waste\n"
                "  waste-fetch verify kimi-linear.waste --against kimi-linear\n"
                "  waste-fetch seal models/demo.waste\n"
                "  waste-fetch diskbench kimi-k3.waste\n",
    .man_notes = ".SH ENVIRONMENT\n"
                 ".TP\n.B HF_ENDPOINT\nthe hub that OWNER/NAME is on\n"
                 ".TP\n.B HF_TOKEN\nthe token for it; sent to that hub alone, over https or to "
                 "this machine\n"
                 ".TP\n.B http_proxy, https_proxy, no_proxy\nproxies, as curl has them\n"
                 ".TP\n.B SSL_CERT_FILE, SSL_CERT_DIR\ncertificates to trust, in place of the "
                 "system's\n"
                 ".SH FILES\n"
                 ".TP\n.I DEST/.waste\\-fetch.json\nwhat get knows of a directory\n"
                 ".TP\n.I DEST/*.part\nfiles that are not whole yet\n",
    .options = option_table,
    .option_count = sizeof(option_table) / sizeof(option_table[0]),
    .commands = command_table,
    .texts = command_texts,
    .command_count = WASTE_FETCH_COMMAND_COUNT,
};
