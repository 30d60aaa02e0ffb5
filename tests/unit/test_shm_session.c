#include "tests/unit/cm.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "shm/session.h"
#include "tests/unit/fake_model.h"

enum { CTX = 10, BYTES = 16384 };

static struct fake_model fake;

static void *make(void)
{
    void *base = aligned_alloc(4096, BYTES);

    fake_model_init(&fake);
    assert_non_null(base);
    memset(base, 0, BYTES);
    waste_session_init(base, BYTES, &fake.model, CTX, 1);
    return base;
}

static int attach(void *base, uint64_t bytes, const struct waste_model *model)
{
    struct waste_session_header *h = NULL;
    struct waste_session *s = NULL;
    int ret = waste_session_attach(base, bytes, model, &h, &s);

    assert_int_equal(h != NULL, ret == 0);
    assert_int_equal(s != NULL, ret == 0);
    return ret;
}

/* Worked out by hand for 1 KDA layer (2 heads of 8, convolution 4), 1 MLA layer (16 + 4), ctx 10.
 */
static void the_layout_is_what_the_model_needs(void **state)
{
    void *base = make();
    struct waste_session_header *h;
    struct waste_session *s;

    assert_int_equal(waste_session_bytes(&fake.model, CTX, 1), BYTES);
    assert_int_equal(waste_session_attach(base, BYTES, &fake.model, &h, &s), 0);
    assert_ptr_equal(h, base);
    assert_int_equal(h->bytes, BYTES);
    assert_int_equal(h->ctx, CTX);
    assert_int_equal(h->session_count, 1);
    assert_int_equal(h->kda_conv_off, 2 * 8 * 8 * 4);
    assert_int_equal(h->kda_layer_bytes, 512 + 3 * 3 * 16 * 4);
    assert_int_equal(h->mla_layer_bytes, 832);
    assert_int_equal(h->session_off, 64);
    assert_int_equal(s->log_off, 832);
    assert_int_equal(s->logits_off, 896);
    assert_int_equal(s->bank_off[0], 4096);
    assert_int_equal(s->bank_off[1], 8192);
    assert_int_equal(s->latent_off, 12288);
    assert_ptr_equal(waste_session_log(h, s), (char *)base + 832);
    assert_ptr_equal(waste_session_logits(h, s, &fake.model, 0), (char *)base + 896);
    free(base);
}

static void impossible_contexts_need_zero_bytes(void **state)
{
    fake_model_init(&fake);
    assert_int_equal(waste_session_bytes(&fake.model, 0, 1), 0);
    assert_int_equal(waste_session_bytes(&fake.model, UINT32_C(1) << 31, 1), 0);
    assert_int_not_equal(waste_session_bytes(&fake.model, INT32_MAX, 1), 0);
    fake.model.config.kv_lora = UINT32_MAX;
    fake.model.config.mla_layers = UINT32_MAX;
    assert_int_equal(waste_session_bytes(&fake.model, INT32_MAX, 1), 0);
    fake_model_init(&fake);
    fake.model.config.kda_heads = fake.model.config.kda_dim = UINT32_MAX;
    assert_int_equal(waste_session_bytes(&fake.model, 1, 1), 0);
    fake_model_init(&fake);
    fake.model.config.conv_width = 0;
    assert_int_equal(waste_session_bytes(&fake.model, 1, 1), 0);
}

static void a_model_without_kda_or_without_mla_has_a_layout_too(void **state)
{
    fake_model_init(&fake);
    fake.model.config.kda_layers = fake.model.config.kda_heads = 0;
    fake.model.config.kda_dim = fake.model.config.conv_width = 0;
    /* both banks and the latent rows start at 4096, one MLA layer of 832 bytes */
    assert_int_equal(waste_session_bytes(&fake.model, CTX, 1), 8192);
    fake_model_init(&fake);
    fake.model.config.mla_layers = fake.model.config.kv_lora = fake.model.config.rope_dim = 0;
    assert_int_equal(waste_session_bytes(&fake.model, CTX, 1), 12288);
}

static void foreign_bytes_are_not_a_session(void **state)
{
    void *base = make();
    struct waste_session_header *h = base;

    h->magic ^= 1;
    assert_int_equal(attach(base, BYTES, &fake.model), -EPROTO);
    h->magic ^= 1;
    h->version++;
    assert_int_equal(attach(base, BYTES, &fake.model), -EPROTO);
    h->version--;
    assert_int_equal(attach(base, 63, &fake.model), -EPROTO);
    assert_int_equal(attach(base, BYTES - 1, &fake.model), -EINVAL);
    assert_int_equal(attach(base, BYTES, &fake.model), 0);
    free(base);
}

static void every_flipped_header_bit_is_refused(void **state)
{
    void *base = make();
    struct waste_session *s = (struct waste_session *)((char *)base + 64);

    for (size_t bit = 0; bit < 8 * sizeof(struct waste_session_header); bit++) {
        if (bit / 8 - offsetof(struct waste_session_header, logit_rows) < 4)
            continue; /* below */
        ((unsigned char *)base)[bit / 8] ^= (unsigned char)(1 << bit % 8);
        assert_int_not_equal(attach(base, BYTES, &fake.model), 0);
        ((unsigned char *)base)[bit / 8] ^= (unsigned char)(1 << bit % 8);
    }
    for (size_t bit = 0; bit < 8 * 40; bit++) {
        ((unsigned char *)&s->log_off)[bit / 8] ^= (unsigned char)(1 << bit % 8);
        assert_int_equal(attach(base, BYTES, &fake.model), -EINVAL);
        ((unsigned char *)&s->log_off)[bit / 8] ^= (unsigned char)(1 << bit % 8);
    }
    assert_int_equal(attach(base, BYTES, &fake.model), 0);
    free(base);
}

/* More rows than lie before the next page, or none. */
static void rows_of_logits_that_are_not_there_are_refused(void **state)
{
    void *base = make();
    struct waste_session_header *h = base;
    uint32_t fit = (4096 - 896) / (4 * fake.model.config.vocab);

    for (uint32_t bit = 0; bit < 32; bit++) {
        h->logit_rows = 1u << bit;
        assert_int_equal(attach(base, BYTES, &fake.model), 1u << bit <= fit ? 0 : -EINVAL);
    }
    h->logit_rows = 0;
    assert_int_equal(attach(base, BYTES, &fake.model), -EINVAL);
    free(base);
    uint64_t one = waste_session_bytes(&fake.model, CTX, 1);
    uint64_t more = waste_session_bytes(&fake.model, CTX, 1 + (4096 << 3));
    assert_int_equal(more - one, (uint64_t)4 * (4096 << 3) * fake.model.config.vocab);
    assert_int_equal(waste_session_bytes(&fake.model, CTX, 0), 0);
}

static void another_models_session_is_refused(void **state)
{
    void *base = make();

    fake.model.config.kda_heads = 3;
    assert_int_equal(attach(base, BYTES, &fake.model), -EINVAL);
    fake_model_init(&fake);
    fake.model.config.vocab = 3200;
    assert_int_equal(attach(base, BYTES, &fake.model), -EINVAL);
    free(base);
}

static void a_commit_word_holds_epoch_position_and_bank(void **state)
{
    uint64_t word = waste_commit_word(UINT32_MAX, 0x7fffffff, 1);

    assert_int_equal(word, UINT64_MAX);
    word = waste_commit_word(7, 1234, 1);
    assert_int_equal(waste_commit_epoch(word), 7);
    assert_int_equal(waste_commit_position(word), 1234);
    assert_int_equal(waste_commit_bank(word), 1);
    assert_int_equal(waste_commit_bank(waste_commit_word(7, 1234, 0)), 0);
    assert_int_equal(waste_commit_position(waste_commit_word(7, 0, 1)), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_layout_is_what_the_model_needs),
        cmocka_unit_test(impossible_contexts_need_zero_bytes),
        cmocka_unit_test(a_model_without_kda_or_without_mla_has_a_layout_too),
        cmocka_unit_test(foreign_bytes_are_not_a_session),
        cmocka_unit_test(every_flipped_header_bit_is_refused),
        cmocka_unit_test(rows_of_logits_that_are_not_there_are_refused),
        cmocka_unit_test(another_models_session_is_refused),
        cmocka_unit_test(a_commit_word_holds_epoch_position_and_bank),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
