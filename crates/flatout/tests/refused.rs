//! Compiler messages for common mistakes of authors.
//!
//! The texts are from one compiler version. For another one, `TRYBUILD=overwrite cargo test --test refused` rewrites
//! them.

#[test]
fn mistakes_are_told_in_words_of_this_library() {
    trybuild::TestCases::new().compile_fail("tests/refused/*.rs");
}
