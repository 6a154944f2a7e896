//! Compressed messages: any input is refused or becomes a message within the limit, and our own output decompresses
//! to the input.

use flatout_engine::websocket::{compress, decompress};

const BYTES_MAX: u64 = 64 << 10;

pub fn run(input: &[u8]) {
    let mut plain = Vec::new();
    if decompress(input, BYTES_MAX, &mut plain).is_ok() {
        assert!(plain.len() as u64 <= BYTES_MAX);
        there_and_back(&plain);
    }
    there_and_back(input);
}

fn there_and_back(message: &[u8]) {
    let mut packed = b"front".to_vec();
    if compress(message, &mut packed) {
        let mut back = Vec::new();
        assert!(packed.len() - 5 < message.len());
        decompress(&packed[5..], message.len() as u64, &mut back).unwrap();
        assert_eq!(back, message);
    } else {
        assert_eq!(packed, b"front");
    }
}
