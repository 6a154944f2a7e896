//! HPACK: arbitrary field blocks on one connection, cut by a length before each, compared with httlib-hpack; and our
//! encoder's output, read by both.

use flatout_wire::h2::hpack::{
    BlockLimits, Decoded, Decoder, Sink, TABLE_BYTES, encode_field, encode_field_never_indexed, huffman_decode,
    huffman_encode,
};

const LIMITS: BlockLimits = BlockLimits { bytes_max: 16 << 10, fields_max: 100 };

#[derive(Default)]
struct Fields {
    text: Vec<u8>,
    found: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Sink for Fields {
    fn text(&mut self) -> &mut Vec<u8> {
        &mut self.text
    }

    fn field(&mut self, field: Decoded) {
        let line = &self.text[field.at..];
        let (name, rest) = line.split_at(field.name_bytes);
        assert!(rest.starts_with(b": ") && rest.ends_with(b"\r\n"));
        let value = &rest[2..rest.len() - 2];
        assert_eq!(value.len(), field.value_bytes);
        self.found.push((name.to_vec(), value.to_vec()));
    }
}

pub fn run(input: &[u8]) {
    let (mut ours, mut theirs) = (Decoder::default(), httlib_hpack::Decoder::with_dynamic_size(TABLE_BYTES as u32));
    let mut rest = input;
    while let [length, behind @ ..] = rest {
        let (block, behind) = behind.split_at(usize::from(*length).min(behind.len()));
        rest = behind;
        let mut fields = Fields::default();
        let read = ours.block(block, LIMITS, &mut fields);
        assert!(ours.memory_bytes() <= 3 * TABLE_BYTES + 2048, "{}", ours.memory_bytes());
        assert!(fields.text.len() <= LIMITS.bytes_max);
        // Others may accept what we refuse: the results must be equal only if we accept.
        if read != Ok(true) {
            break;
        }
        let (mut buffer, mut list) = (block.to_vec(), Vec::new());
        let decoded = theirs.decode(&mut buffer, &mut list);
        assert!(decoded.is_ok(), "{decoded:?} of {block:02x?}");
        let list: Vec<(Vec<u8>, Vec<u8>)> = list.into_iter().map(|(name, value, _)| (name, value)).collect();
        assert_eq!(fields.found, list, "{block:02x?}");
        round_trip(&fields.found);
    }
    let mut code = Vec::new();
    huffman_encode(input, &mut code);
    let mut text = Vec::new();
    huffman_decode(&code, &mut text).expect("what was encoded can be decoded");
    assert_eq!(text, input);
}

/// Both decoders can read the encoder's output.
fn round_trip(fields: &[(Vec<u8>, Vec<u8>)]) {
    let mut block = Vec::new();
    let good: Vec<_> = fields.iter().filter(|(name, _)| flatout_wire::field::is_token(name)).cloned().collect();
    let lower = |(name, value): &(Vec<u8>, Vec<u8>)| (name.to_ascii_lowercase(), value.clone());
    let lower: Vec<_> = good.iter().map(lower).filter(|(name, _)| !name.is_empty()).collect();
    for (number, (name, value)) in lower.iter().enumerate() {
        match number % 2 {
            0 => encode_field(name, value, &mut block),
            _ => encode_field_never_indexed(name, value, &mut block),
        }
    }
    let mut read = Fields::default();
    assert_eq!(Decoder::default().block(&block, LIMITS, &mut read), Ok(true));
    assert_eq!(read.found, lower);
    let mut list = Vec::new();
    httlib_hpack::Decoder::default().decode(&mut block, &mut list).expect("a block of ours");
    assert!(list.iter().map(|(name, value, _)| (name, value)).eq(lower.iter().map(|(name, value)| (name, value))));
}
