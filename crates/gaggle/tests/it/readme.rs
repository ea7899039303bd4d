//! What the README shows is what the examples run.

const README: &str = include_str!("../../../../README.md");

/// The README's fenced blocks that begin with this line.
fn blocks(fence: &str) -> Vec<String> {
    README
        .split("\n```")
        .filter_map(|b| b.strip_prefix(fence)?.strip_prefix('\n'))
        .map(str::to_owned)
        .collect()
}

/// The failure message that the README quotes.
pub fn failure() -> String {
    let all = blocks("text failure");
    assert_eq!(all.len(), 1);
    all[0].trim().to_owned()
}

/// The function that an example shows.
fn shown(example: &str, from: &str) -> String {
    let at = example.find(from).unwrap();
    let end = example[at..].find("\n}\n").unwrap() + at + 2;
    example[at..end].to_owned()
}

/// Without comments and empty lines.
fn n_lines(code: &str) -> usize {
    code.lines()
        .map(str::trim)
        .filter(|l| !l.is_empty() && !l.starts_with("//"))
        .count()
}

#[test]
fn three_sizes_are_as_short_as_it_says_and_are_the_examples() {
    let rust = blocks("rust");
    let examples = [
        (include_str!("../../examples/all_reduce.rs"), "fn main", 6),
        (include_str!("../../examples/dmsgd.rs"), "fn dmsgd", 12),
        (include_str!("../../examples/ddp.rs"), "fn fit", 20),
    ];
    for (block, (example, from, limit)) in rust.iter().zip(examples) {
        assert!(n_lines(block) <= limit, "{} lines: {block}", n_lines(block));
        assert!(block.contains(&shown(example, from)), "{block}");
    }
}
