//! Compiler messages for common mistakes of authors.
//!
//! The texts are from one compiler version. For another one, `TRYBUILD=overwrite cargo test --test refused` rewrites
//! them.

#[test]
fn compiler_errors_name_types_of_this_library() {
    trybuild::TestCases::new().compile_fail("tests/refused/*.rs");
}
