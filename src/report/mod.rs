//! From records to one run report: one accumulator, used live, by `report` and by `merge`.
