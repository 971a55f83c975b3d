CREATE TABLE IF NOT EXISTS calls (position INTEGER PRIMARY KEY, key TEXT UNIQUE, phase TEXT, model TEXT, failed INTEGER,
                                  calls INTEGER, prompt_tokens INTEGER, completion_tokens INTEGER, money REAL,
                                  unpriced INTEGER, data TEXT NOT NULL)
