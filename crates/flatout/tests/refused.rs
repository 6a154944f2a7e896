//! What the compiler says of code that cannot be: the mistakes that authors make.
//!
//! The texts are those of one compiler. Where another says it differently, `TRYBUILD=overwrite cargo test --test refused`
//! writes them anew.

#[test]
fn mistakes_are_told_in_words_of_this_library() {
    trybuild::TestCases::new().compile_fail("tests/refused/*.rs");
}
