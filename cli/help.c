/* What each command has to say for itself. */
#include "cli/options_int.h"

#define RUN_EXAMPLES                                                                               \
    "  waste-run models/demo.waste \"What is the capital of Italy?\"\n"                            \
    "  waste-run run models/demo.waste --ids 1283,265,279 -n 48 --json\n"                          \
    "  waste-run run models/demo.waste --session talk.waste-session \"Hello!\"\n"                  \
    "  waste-run k3.waste --budget 46G --temp 0.6 --top-p 0.95 - < question.txt\n"

const struct waste_command_text waste_command_texts[WASTE_COMMAND_COUNT] = {
    [WASTE_CMD_RUN] =
        {.about =
             "Starts the pipeline, generates, and ends it. The text goes to stdout as it comes, a\n"
             "status line to stderr. The prompt is wrapped in the model's chat markup unless --raw "
             "is\n"
             "given; text never becomes a control token. '-' reads the prompt from stdin. Without "
             "a\n"
             "prompt and with a terminal, 'waste-run MODEL' is 'waste-run chat MODEL'.\n"
             "--session FILE appends the prompt to the conversation FILE holds. A reply that was "
             "cut\n"
             "off goes on when the same prompt, or none, is given: the whole of it is shown. "
             "Without "
             "a\n"
             "prompt, a reply that -n ended goes on, too. FILE.old is the save before.\n"
             "A system message that was computed once is not computed again: --prefix-cache.\n",
         .examples = RUN_EXAMPLES},
    [WASTE_CMD_CHAT] =
        {.about =
             "A conversation that keeps its state between the turns, so that each turn costs its "
             "own\n"
             "tokens only. Lines are messages; \\ at the end of one, or \"\"\" around a text, "
             "makes a\n"
             "message of several. /help tells the commands: /reset /save /load /system /image "
             "/stats\n"
             "/retry /set /quit. Ctrl-C ends a reply and keeps the conversation. In a pipe, each "
             "line\n"
             "of stdin is a turn. --session FILE keeps the conversation, also through kill -9 and "
             "a\n"
             "power cut, and goes on with it at the next start. --json: events, one a line (text,\n"
             "think, tool_call, end, info, note, error, stats).\n",
         .examples =
             "  waste-run chat models/demo.waste --temp 0.6\n"
             "  waste-run chat models/demo.waste --think show\n"
             "  waste-run chat models/demo.waste --session talk.waste-session\n"
             "  printf 'Hello!\\n/save talk.json\\n' | waste-run chat models/demo.waste -q\n"},
    [WASTE_CMD_EVAL] =
        {.about =
             "Runs the text (in chat markup unless --raw is given) or --ids through the model and "
             "shows\n"
             "which tokens would follow, with their probabilities. --logits writes what the "
             "numbers "
             "were\n"
             "made of, with --all for every position. --perplexity scores a file: the mean of\n"
             "-log(probability) a token, and its exp.\n",
         .examples =
             "  waste-run eval models/demo.waste --ids 1283,265 --logits last.f32\n"
             "  waste-run eval models/demo.waste --raw \"In the beginning\" --top 5 --json\n"
             "  waste-run eval models/demo.waste --perplexity book.txt\n"},
    [WASTE_CMD_TOKENIZE] =
        {.about = "Shows the ids a prompt becomes, chat markup included, as --ids takes them; with "
                  "--raw\n"
                  "those of the text alone. What looks like a control token in it is none, unless "
                  "--markup\n"
                  "is given. --markup, --jsonl, --model and --tokenizer imply --raw. Without TEXT, "
                  "or with "
                  "-,\n"
                  "it comes from stdin.\n",
         .examples = "  waste-run tokenize models/demo.waste \"What is the capital of Italy?\"\n"
                     "  waste-run tokenize models/demo.waste --raw \"Hello world\" --json\n"
                     "  waste-run tokenize --tokenizer kimi.tiktoken --jsonl < texts.jsonl\n"},
    [WASTE_CMD_DETOKENIZE] =
        {.about = "Writes the very bytes of token ids, control tokens as their texts.\n",
         .examples = "  waste-run detokenize models/demo.waste 312,331,274\n"},
    [WASTE_CMD_RENDER] = {.about = "Shows what a conversation becomes: FILE holds it as OpenAI's "
                                   "API has it (messages with\n"
                                   "roles, content parts, reasoning_content, tool_calls, tool "
                                   "results; tools, tool_choice,\n"
                                   "response_format, thinking, thinking_effort). In Kimi K3's "
                                   "format, or in MODEL's own.\n",
                          .examples =
                              "  waste-run render conversation.json\n"
                              "  waste-run render - --segments < conversation.json\n"
                              "  waste-run render conversation.json models/demo.waste --ids\n"},
    [WASTE_CMD_BENCH] = {.about = "Measures prefill and decode apart. --step feeds given ids "
                                  "through decode one at a time,\n"
                                  "so that two engines can be compared on the same routing.\n",
                         .examples = "  waste-run bench models/demo.waste --tokens 64 --json\n"
                                     "  waste-run bench k3.waste --ids-file prompt.ids --step\n"},
    [WASTE_CMD_PLAN] = {.about = "Adds up control, trunk and session segments, every process and "
                                 "the cache, and shows the\n"
                                 "floor, the budget and what it buys. A budget under the floor is "
                                 "refused. A working set "
                                 "is\n"
                                 "the experts one token may ask for. Without --budget, the cache "
                                 "holds three of them, or "
                                 "as\n"
                                 "many as 7/8 of the free memory holds: give --budget for more.\n",
                        .examples = "  waste-run plan k3.waste --budget 46G\n"
                                    "  waste-run plan models/demo.waste --json\n"},
    [WASTE_CMD_INFO] =
        {.about = "Shows the architecture and the formats of a container, after checking it; how\n"
                  "many threads would compute and why, and how experts would be read.\n",
         .examples = "  waste-run info models/demo.waste\n"},
    [WASTE_CMD_PS] =
        {.about = "Lists the pipelines of this user: of each process its state, what it waits "
                  "for, its memory\n"
                  "and how often it was restarted.\n",
         .examples = "  waste-run ps\n"
                     "  waste-run ps --json\n"},
    [WASTE_CMD_STATS] =
        {.about =
             "Shows stages, rates, drives, layers, what was lost or is not used (warnings) and all "
             "counters\n"
             "of a running pipeline, once. Looking changes nothing and asks no stage. "
             "--prometheus: "
             "for a\n"
             "textfile collector, say.\n",
         .examples = "  waste-run stats --json\n"
                     "  waste-run stats --prometheus > /var/lib/node_exporter/waste.prom\n"},
    [WASTE_CMD_TOP] =
        {.about =
             "Shows what each stage does and waits for, its share of a CPU, memory and restarts; "
             "tokens a\n"
             "second, where a step's time goes, hits and misses, prefetches used and wasted, what "
             "drives\n"
             "and memory give of what they could, how long reads take, the time of each layer. q "
             "or\n"
             "Ctrl-C ends it. Where stdout is no terminal, one look over --interval seconds.\n"
             "\n"
             "disk: read a second, of what the drives gave when the reader measured them at the "
             "start.\n"
             "memory: weights a generated token touches, of what compute's threads read a second "
             "at "
             "the\n"
             "start. A drive or trunk too small to measure shows no share.\n",
         .examples = "  waste-run top\n"
                     "  waste-run top --interval 0.5\n"
                     "  waste-run top --once --json --pid 4711\n"},
    [WASTE_CMD_RESTART] =
        {.about = "Asks a stage to finish what it must, exit, and be started again. The "
                  "output of a request\n"
                  "in progress stays the same; the trunk is not read again. Says which "
                  "processes came for which.\n",
         .examples = "  waste-run restart compute\n"
                     "  waste-run restart all --pid 4711\n",
         .words = "reader compute router all"},
    [WASTE_CMD_BUDGET] =
        {.about =
             "Changes how much memory a running pipeline may take. The cache becomes smaller, its "
             "pages\n"
             "given back, or grows as experts are read; what is generated stays the same.\n",
         .examples = "  waste-run budget 24G\n"
                     "  waste-run budget 46G --pid 4711\n"},
    [WASTE_CMD_STOP] = {.about =
                            "Ends a pipeline as Ctrl-C would: what was generated is printed first. "
                            "Returns when it has\n"
                            "ended.\n",
                        .examples = "  waste-run stop\n"
                                    "  waste-run stop --pid 4711 -q\n"},
    [WASTE_CMD_LOG] =
        {.about = "Shows what the stages reported, oldest first, also those that have died "
                  "since; of each the\n"
                  "last 64 lines. --json: one object a line (time, stage, level, text).\n",
         .examples = "  waste-run log\n"
                     "  waste-run log -f --json\n"},
};
