//! Complex numbers, as far as eigenvalues need them.

/// re + im·i.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct C {
    pub re: f64,
    pub im: f64,
}

impl C {
    pub fn real(re: f64) -> C {
        C { re, im: 0.0 }
    }
    pub fn plus(self, o: C) -> C {
        C {
            re: self.re + o.re,
            im: self.im + o.im,
        }
    }
    pub fn minus(self, o: C) -> C {
        self.plus(o.scaled(-1.0))
    }
    pub fn times(self, o: C) -> C {
        C {
            re: self.re * o.re - self.im * o.im,
            im: self.re * o.im + self.im * o.re,
        }
    }
    pub fn scaled(self, by: f64) -> C {
        C {
            re: self.re * by,
            im: self.im * by,
        }
    }
    pub fn conjugate(self) -> C {
        C {
            re: self.re,
            im: -self.im,
        }
    }
    pub fn size(self) -> f64 {
        self.re.hypot(self.im)
    }
    pub fn root(self) -> C {
        let (size, angle) = (self.size().sqrt(), self.im.atan2(self.re) / 2.0);
        C {
            re: size * angle.cos(),
            im: size * angle.sin(),
        }
    }
}

/// The two eigenvalues of a 2×2 matrix.
pub(crate) fn eigenvalues_of_two(m: [[C; 2]; 2]) -> [C; 2] {
    let half = m[0][0].plus(m[1][1]).scaled(0.5);
    // (a − d)²/4 + bc, which does not cancel as t²/4 − det does.
    let apart = m[0][0].minus(m[1][1]).scaled(0.5);
    let root = apart.times(apart).plus(m[0][1].times(m[1][0])).root();
    [half.plus(root), half.minus(root)]
}
