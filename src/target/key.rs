//! A server may repeat the key that it was sent: in its description, a label, an error, its log. What is read from it goes
//! into files that people attach to pull requests, so the key is taken out as it is read.

/// Where the key of all requests comes from.
pub const API_KEY: &str = "OPENAI_API_KEY";

/// Shorter ones are words, such as `EMPTY`; taking them out would garble what is read.
const LEAST: usize = 8;

const HIDDEN: &[u8] = b"(hidden)";

/// What was read, without the key of the environment.
pub(super) fn hidden(read: Vec<u8>) -> Vec<u8> {
    match std::env::var(API_KEY) {
        Ok(key) => without(read, key.as_bytes()),
        Err(_) => read,
    }
}

fn without(read: Vec<u8>, key: &[u8]) -> Vec<u8> {
    let is_there = |at: usize| read[at..].starts_with(key);
    if key.len() < LEAST || !(0..read.len()).any(is_there) {
        return read;
    }
    let (mut public, mut at) = (Vec::with_capacity(read.len()), 0);
    while let Some(byte) = read.get(at) {
        if is_there(at) {
            public.extend_from_slice(HIDDEN);
            at += key.len();
        } else {
            public.push(*byte);
            at += 1;
        }
    }
    public
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_taken_out_wherever_it_stands_and_a_word_is_left() {
        let said = |read: &str, key: &str| String::from_utf8(without(read.into(), key.as_bytes())).unwrap();
        assert_eq!(said("sk-12345", "sk-12345"), "(hidden)");
        assert_eq!(
            said("{\"cmd\":\"--key sk-12345\",\"sk-12345\":1}", "sk-12345"),
            "{\"cmd\":\"--key (hidden)\",\"(hidden)\":1}"
        );
        assert_eq!(said("sk-1234sk-12345sk-12345sk-1234", "sk-12345"), "sk-1234(hidden)(hidden)sk-1234");
        assert_eq!(said("EMPTY and \u{e9}", "EMPTY"), "EMPTY and \u{e9}");
        assert_eq!(said("", "sk-12345"), "");
    }
}
