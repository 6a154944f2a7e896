//! Sets of CPUs as the kernel writes them: lists such as `0-3,8`, masks such as `ff,00000001`.

/// The CPUs of a list; an invalid list is empty.
pub(crate) fn of_list(text: &str) -> Vec<usize> {
    let ranges = text.trim().split(',').filter_map(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some((first.trim().parse().ok()?, last.trim().parse().ok()?))
    });
    ranges.flat_map(|(first, last): (usize, usize)| first..=last.min(CPU_MAX)).collect()
}

/// A list in the kernel's format, from ascending numbers.
pub(crate) fn list(cpus: &[usize]) -> String {
    let mut ranges: Vec<(usize, usize)> = Vec::new();
    for cpu in cpus {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == *cpu => *last = *cpu,
            _ => ranges.push((*cpu, *cpu)),
        }
    }
    let one = |(first, last): (usize, usize)| {
        if first == last { first.to_string() } else { format!("{first}-{last}") }
    };
    ranges.into_iter().map(one).collect::<Vec<_>>().join(",")
}

/// A mask in sysfs's format: hexadecimal words of 32 bits, the highest first.
pub(crate) fn mask(cpus: impl IntoIterator<Item = usize>) -> String {
    let mut words: Vec<u32> = vec![0];
    for cpu in cpus {
        if cpu / 32 >= words.len() {
            words.resize(cpu / 32 + 1, 0);
        }
        words[cpu / 32] |= 1 << (cpu % 32);
    }
    let highest_first = words.iter().rev().map(|word| format!("{word:08x}"));
    highest_first.collect::<Vec<_>>().join(",")
}

/// Whether two masks name the same CPUs: the kernel pads masks to the number of CPUs that it was built for.
pub(crate) fn same_mask(one: &str, other: &str) -> bool {
    let digits = |text: &str| text.trim().replace(',', "").trim_start_matches('0').to_ascii_lowercase();
    digits(one) == digits(other)
}

/// The highest CPU number that a kernel can be built for; a list with higher ones is invalid.
const CPU_MAX: usize = 8191;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_masks() {
        assert_eq!(of_list("0-2,5\n"), [0, 1, 2, 5]);
        assert_eq!(list(&[0, 1, 2, 5, 7, 8]), "0-2,5,7-8");
        assert_eq!(list(&[]), "");
        assert_eq!(of_list("x,-"), [] as [usize; 0]);
        assert_eq!(of_list("0-99999999999").len(), CPU_MAX + 1);
        assert_eq!(mask([0, 1]), "00000003");
        assert_eq!(mask([32]), "00000001,00000000");
        assert!(same_mask("00000000,00000003", "3"));
        assert!(same_mask("0", "00000000") && !same_mask("1", "2"));
    }
}
