-- Nothing: SQLite compiles the CHECKs of a table once, with each statement that it keeps. The
-- version is there because both engines have the same ones.
SELECT 1;
