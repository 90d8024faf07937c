-- The tables of the embedded index.
CREATE TABLE edition (file TEXT NOT NULL, number INTEGER NOT NULL, passages INTEGER NOT NULL);
CREATE TABLE documents (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    source TEXT NOT NULL UNIQUE,
    digest TEXT NOT NULL,
    name TEXT NOT NULL,
    title TEXT NOT NULL,
    model TEXT NOT NULL,
    added_at_s REAL NOT NULL
);
CREATE TABLE passages (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    document INTEGER NOT NULL REFERENCES documents (id),
    number INTEGER NOT NULL,
    title TEXT NOT NULL,
    text TEXT NOT NULL
);
CREATE INDEX passages_of_document ON passages (document);
CREATE TABLE vectors (
    passage INTEGER PRIMARY KEY REFERENCES passages (id),
    document INTEGER NOT NULL REFERENCES documents (id),
    vector BLOB NOT NULL
);
CREATE INDEX vectors_of_document ON vectors (document);
CREATE VIRTUAL TABLE words USING fts5 (
    title, text, content = 'passages', content_rowid = 'id', tokenize = 'porter unicode61 remove_diacritics 2'
);
CREATE TRIGGER words_in AFTER INSERT ON passages BEGIN
    INSERT INTO words (rowid, title, text) VALUES (new.id, new.title, new.text);
END;
CREATE TRIGGER words_out AFTER DELETE ON passages BEGIN
    INSERT INTO words (words, rowid, title, text) VALUES ('delete', old.id, old.title, old.text);
END;
