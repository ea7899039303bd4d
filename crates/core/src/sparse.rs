//! A round's weights as a sparse matrix, in the form in which products with it are quick.

/// A square matrix of which only the entries that may differ from 0 are kept, row by row.
///
/// ```
/// use gaggle_core::SparseMatrix;
///
/// // A directed ring of three: half of the own value, half of the one before.
/// let ring = SparseMatrix::new(3, |i| [(i, 0.5), ((i + 2) % 3, 0.5)]);
/// let mut y = [0.0; 3];
/// ring.apply(&[1.0, 2.0, 4.0], &mut y);
/// assert_eq!(y, [2.5, 1.5, 3.0]);
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SparseMatrix {
    /// Where each row ends in `entries`.
    ends: Vec<usize>,
    /// (column, weight), one row after the other.
    entries: Vec<(u32, f64)>,
}

impl SparseMatrix {
    /// With the (column, weight) pairs that `row` gives for each of `world` rows; of one column that comes twice the weights add up, and columns that do not exist are left out.
    pub fn new<R>(world: usize, mut row: impl FnMut(usize) -> R) -> SparseMatrix
    where
        R: IntoIterator<Item = (usize, f64)>,
    {
        let mut matrix = SparseMatrix::default();
        for i in 0..world {
            let entries = row(i).into_iter().filter(|e| e.0 < world);
            let narrow = entries.filter_map(|(j, w)| Some((u32::try_from(j).ok()?, w)));
            matrix.entries.extend(narrow);
            matrix.ends.push(matrix.entries.len());
        }
        matrix
    }

    /// Number of rows, which are ranks.
    pub fn world(&self) -> usize {
        self.ends.len()
    }

    /// Number of entries: the multiplications of one product.
    pub fn n_entries(&self) -> usize {
        self.entries.len()
    }

    /// The (column, weight) pairs of row `i`; none where there is no such row.
    pub fn row(&self, i: usize) -> impl Iterator<Item = (usize, f64)> + '_ {
        let start = i
            .checked_sub(1)
            .map_or(Some(0), |before| self.ends.get(before).copied());
        let range = start.zip(self.ends.get(i).copied());
        let row = range.map_or(&[][..], |(start, end)| &self.entries[start..end]);
        row.iter().map(|&(j, w)| (j as usize, w))
    }

    /// y = W·x.
    ///
    /// # Panics
    /// If `x` or `y` has fewer elements than there are ranks.
    pub fn apply(&self, x: &[f64], y: &mut [f64]) {
        assert!(
            x.len() >= self.world() && y.len() >= self.world(),
            "one element per rank"
        );
        let mut start = 0;
        for (y, &end) in y.iter_mut().zip(&self.ends) {
            *y = self.entries[start..end]
                .iter()
                .map(|&(j, w)| w * x[j as usize])
                .sum();
            start = end;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_are_those_of_the_rows() {
        for n in [0, 1, 2, 3, 5, 7, 8] {
            let rows = |i: usize| {
                [
                    (i, 0.25),
                    ((i + 1) % n.max(1), 0.5),
                    (i, 0.25),
                    (n + i, 9.0),
                ]
            };
            let matrix = SparseMatrix::new(n, rows);
            assert_eq!((matrix.world(), matrix.n_entries()), (n, 3 * n));
            let x: Vec<f64> = (0..n).map(|i| i as f64).collect();
            let mut y = vec![f64::NAN; n];
            matrix.apply(&x, &mut y);
            for (i, y) in y.iter().enumerate() {
                assert_eq!(*y, 0.5 * i as f64 + 0.5 * ((i + 1) % n) as f64);
                assert_eq!(matrix.row(i).count(), 3);
            }
            assert_eq!(matrix.row(n).count(), 0);
        }
    }
}
