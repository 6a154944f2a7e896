//! Request heads. If a head is accepted, httparse reads the same, and no prefix of it was refused.

use flatout_wire::head::{Fault, HeadLimits, parse};
use flatout_wire::target::normal_path;

pub fn run(input: &[u8]) {
    let limits = HeadLimits::default();
    let mut fields = Vec::new();
    let outcome = parse(input, &mut fields, &limits);
    for end in some_prefixes(input) {
        let mut fields = Vec::new();
        match (parse(&input[..end], &mut fields, &limits), &outcome) {
            (Err(fault), Err(whole)) => assert_eq!(fault, *whole, "at {end}"),
            (Err(fault), Ok(_)) => panic!("a prefix of {end} bytes is refused: {fault:?}"),
            (Ok(Some(head)), Ok(Some(whole))) => assert_eq!(head.bytes(), whole.bytes(), "at {end}"),
            (Ok(Some(_)), whole) => panic!("a prefix of {end} bytes is a head, the whole is {whole:?}"),
            (Ok(None), _) => {}
        }
    }
    let head = match outcome {
        Ok(Some(head)) => head,
        Ok(None) => return assert!(input.len() < limits.head_bytes_max),
        Err(fault) => return assert_answer(fault),
    };

    let mut headers = [httparse::EMPTY_HEADER; 128];
    let mut oracle = httparse::Request::new(&mut headers);
    assert_eq!(oracle.parse(input), Ok(httparse::Status::Complete(head.len())));
    assert_eq!(oracle.method.map(str::as_bytes), Some(head.method_name()));
    assert_eq!(oracle.path.map(str::as_bytes), Some(head.target()));
    assert_eq!(oracle.version, Some(head.version as u8));
    let theirs = oracle.headers.iter().map(|header| (header.name.as_bytes(), header.value));
    assert!(theirs.eq(head.fields()), "the fields differ");

    if head.path().starts_with(b"/") && !head.path_needs_care {
        assert_eq!(normal_path(head.path(), &mut Vec::new()), Ok(head.path()));
    }
}

/// All prefixes would take quadratic time; a few, chosen by the input itself, find the same eventually.
fn some_prefixes(input: &[u8]) -> impl Iterator<Item = usize> {
    let sum = input.iter().fold(17usize, |sum, &byte| sum.wrapping_mul(31).wrapping_add(usize::from(byte)));
    let length = input.len().max(1);
    [sum % length, (sum >> 16) % length, length - 1].into_iter()
}

fn assert_answer(fault: Fault) {
    assert!((400..=505).contains(&fault.status().code()) && !fault.reason().is_empty());
}
